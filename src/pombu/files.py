"""Atomic, checksummed files: whole or not there, and named when they are damaged."""

import contextlib
import hashlib
import json
import os
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pombu.errors import RunError, UsageError

SEAL = "sha256"
"""The entry of a JSON object that holds the checksum of all others."""


class DamagedFileError(RunError):
    """A file is missing or does not hold what was written to it."""

    def __init__(self, path: Path, reason: str) -> None:
        self.path = path
        super().__init__(f"{path} is damaged ({reason}).")


def as_path(name: str, given: Any) -> Path:
    """What a user gave for a file or folder.

    Raises:
        UsageError: It is no path.
    """
    try:
        return Path(given)
    except TypeError:
        raise UsageError(f"{name} is {given!r:.80}: give the path of it.") from None


def safe_name(text: str) -> str:
    """A name that any file system takes."""
    return "".join(c if c.isalnum() or c in "-_.+" else "-" for c in text)


def digest(data: bytes) -> str:
    """The SHA-256 checksum of some bytes, in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def json_digest(content: Any) -> str:
    """The checksum of a JSON value, however it is laid out in a file."""
    return digest(json.dumps(content, sort_keys=True).encode())


def sealed(content: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON object with its own checksum in it."""
    return {**content, SEAL: json_digest(content)}


def unsealed(path: Path, content: Any) -> dict[str, Any]:
    """The object that `sealed` was given; version 0.1 wrote some without a checksum.

    Raises:
        DamagedFileError: It is not as it was written; `path` is where it was found.
    """
    if not isinstance(content, dict):
        raise DamagedFileError(path, "it is no JSON object")
    inner = {key: value for key, value in content.items() if key != SEAL}
    if content.get(SEAL) not in (None, json_digest(inner)):
        raise DamagedFileError(path, "its checksum differs")
    return inner


def parse_json(data: bytes | str) -> Any:
    """A JSON value.

    Raises:
        ValueError: It is none, or is nested more deeply than anyone writes it.
    """
    try:
        return json.loads(data)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """The entries in which two flat mappings differ: key, new value and old one.

    A key that only `after` has is an option that came with a later version.
    """
    return [
        f"{key} = {after.get(key)!r} (was {value!r})"
        for key, value in before.items()
        if after.get(key) != value
    ]


def temporary_name(path: Path) -> Path:
    """A name beside `path` that no other process uses, also in another container."""
    return path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")


def not_through_links(path: str, flags: int) -> int:
    """Open a file itself: `open(..., opener=not_through_links)` follows no link."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)


def require_no_links(*folders: Path) -> None:
    """Refuse folders with symbolic links in them, through which files would be written.

    Raises:
        UsageError: Names the link.
    """
    for folder in folders:
        for path in sorted(folder.iterdir()) if folder.is_dir() else ():
            if path.is_symlink():
                raise UsageError(
                    f"{path} is a symbolic link to {os.readlink(path)}, and a run "
                    "writes into its own folder alone: put what it points to in its "
                    "place, or remove it."
                )


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn a failure to write into one sentence with the place and the remedy."""
    try:
        yield
    except OSError as error:
        raise RunError(
            f"could not write {path} ({error.strerror}): what was saved before is "
            "whole; free some space or make the folder writable, then resume the run."
        ) from error


def write_synced(path: Path, data: bytes) -> None:
    """Write a new file and wait until it is on the disk."""
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Wait until a folder's entries (a new file, a renaming) are on the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_atomic(path: Path, data: bytes) -> None:
    """Write a file so that a crash leaves either the old one or the new one, whole."""
    temporary = temporary_name(path)
    with writing(path):
        try:
            write_synced(temporary, data)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
        sync_folder(path.parent)


def read_checked(path: Path, checksum: str) -> bytes:
    """Read a file that must hold exactly the bytes with this checksum."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise DamagedFileError(path, "it is missing") from None
    except OSError as error:
        raise DamagedFileError(path, error.strerror or "it cannot be read") from None
    if digest(data) != checksum:
        raise DamagedFileError(path, "its checksum differs")
    return data


def set_aside(path: Path) -> Path:
    """Rename something damaged or stale: its name is free and nothing is lost."""
    number = 1
    while (aside := path.with_name(f"{path.name}.damaged-{number}")).exists():
        number += 1
    with writing(aside):
        path.rename(aside)
        sync_folder(path.parent)
    return aside
