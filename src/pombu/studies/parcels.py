"""Carrying a run folder between machines that share no disk.

A parcel holds the files that changed since the last one and the names of those that
went away. Nothing in it is code.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pombu.training.files import write_atomic
from pombu.training.run import LOCK

Stamps = dict[str, tuple[int, int]]


@dataclass(frozen=True)
class Parcel:
    """Changes of a run folder, by paths relative to it."""

    files: Mapping[str, bytes] = field(default_factory=dict)
    gone: tuple[str, ...] = ()


def pack(folder: Path, known: Stamps) -> tuple[Parcel, Stamps]:
    """What changed in a folder since it looked like `known`, and how it looks now."""
    stamps = _stamps(folder)
    changed = [name for name, stamp in stamps.items() if known.get(name) != stamp]
    files = {name: (folder / name).read_bytes() for name in changed}
    return Parcel(files, tuple(name for name in known if name not in stamps)), stamps


def unpack(parcel: Parcel, folder: Path) -> None:
    """Apply changes; a crash midway leaves a checkpoint that is known as damaged.

    A checkpoint's manifest, without which it does not count, comes after its state
    (`manifest` < `state`, so in reverse order).
    """
    for name in sorted(parcel.files, reverse=True):
        path = _inside(folder, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, parcel.files[name])
    for name in parcel.gone:
        path = _inside(folder, name)
        path.unlink(missing_ok=True)
        if path.parent != folder and not any(path.parent.iterdir()):
            path.parent.rmdir()


def _stamps(folder: Path) -> Stamps:
    found: Stamps = {}
    for root, _, names in os.walk(folder):
        for name in names:
            path = Path(root, name)
            if name == LOCK or name.endswith(".tmp"):
                continue
            status = path.stat()
            relative = path.relative_to(folder).as_posix()
            found[relative] = (status.st_mtime_ns, status.st_size)
    return found


def _inside(folder: Path, name: str) -> Path:
    """The file of that name, which must not lead out of the folder."""
    path = folder / name
    if not path.resolve().is_relative_to(folder.resolve()):
        raise ValueError(f"{name} leads out of {folder}")
    return path
