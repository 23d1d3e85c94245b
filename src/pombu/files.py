"""Atomic, checksummed files: whole or not there, and named when they are damaged."""

import contextlib
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

from pombu.errors import RunError


class DamagedFileError(RunError):
    """A file is missing or does not hold what was written to it."""

    def __init__(self, path: Path, reason: str) -> None:
        self.path = path
        super().__init__(f"{path} is damaged ({reason}).")


def safe_name(text: str) -> str:
    """A name that any file system takes."""
    return "".join(c if c.isalnum() or c in "-_.+" else "-" for c in text)


def digest(data: bytes) -> str:
    """The SHA-256 checksum of some bytes, in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


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
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
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
