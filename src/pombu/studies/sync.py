"""Run folders between machines that share no disk: what changed since the last look.

Changes are files and the names of those that went away. Nothing in them is code.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pombu.training.checkpoint import CHECKPOINTS
from pombu.training.files import write_atomic
from pombu.training.run import LOCK

Stamps = dict[str, tuple[int, int]]


@dataclass(frozen=True)
class FolderChanges:
    """Changes of a run folder, by paths relative to it."""

    files: Mapping[str, bytes] = field(default_factory=dict)
    gone: tuple[str, ...] = ()


def read_changes(folder: Path, known: Stamps) -> tuple[FolderChanges, Stamps]:
    """What changed in a folder since it looked like `known`, and how it looks now."""
    stamps = _stamps(folder)
    changed = [name for name, stamp in stamps.items() if known.get(name) != stamp]
    files = {name: (folder / name).read_bytes() for name in changed}
    gone = tuple(name for name in known if name not in stamps)
    return FolderChanges(files, gone), stamps


def apply_changes(changes: FolderChanges, folder: Path) -> None:
    """Apply changes; a crash midway leaves no half of a checkpoint.

    A new checkpoint appears with all of its files at once.
    """
    new = sorted(
        {
            path.parent
            for name in changes.files
            if (path := _inside(folder, name)).parent.parent.name == CHECKPOINTS
            and not path.parent.exists()
        }
    )
    for name, content in changes.files.items():
        path = _inside(folder, name)
        if path.parent in new:
            path = _aside(path.parent) / path.name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, content)
    for checkpoint in new:
        _aside(checkpoint).rename(checkpoint)
    for name in changes.gone:
        path = _inside(folder, name)
        path.unlink(missing_ok=True)
        if path.parent != folder and not any(path.parent.iterdir()):
            path.parent.rmdir()


def _aside(checkpoint: Path) -> Path:
    """Where a checkpoint is put together; what a crash leaves there is cleaned up."""
    return checkpoint.with_name(f".{checkpoint.name}.{os.getpid()}.tmp")


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
