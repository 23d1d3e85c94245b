"""Checkpoints: everything a run needs to go on exactly where it stopped.

    checkpoints/000012/state.safetensors   the algorithm's state
    checkpoints/000012/manifest.json       what it is, and a checksum of every file
    episodes/00012.safetensors             real episodes, shared by later checkpoints

A checkpoint appears under its name only when all of it is on the disk. Nothing in it
can run code: the state is stored as numbers alone, each under its path in the tree, and
the structure always comes from a template, a freshly made state of the same config.
"""

import contextlib
import dataclasses
import json
import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

import jax
import numpy as np
import numpy.typing as npt
import safetensors.numpy

from pombu import __version__
from pombu.data.episodes import EPISODES, EpisodeStore, Shard, load_episodes
from pombu.envs import EnvConfig
from pombu.errors import RunError, UsageError
from pombu.files import (
    DamagedFileError,
    changes,
    digest,
    parse_json,
    read_checked,
    set_aside,
    sync_folder,
    temporary_name,
    write_synced,
    writing,
)
from pombu.parallel import usable_cores

FORMAT = 1
CHECKPOINTS = "checkpoints"
STATE = "state.safetensors"
MANIFEST = "manifest.json"

S = TypeVar("S")
Array = npt.NDArray[Any]


class ReplacedError(UsageError):
    """Arrays are those of another implementation; says of which."""


@dataclasses.dataclass(frozen=True)
class Identity:
    """What a checkpoint is a checkpoint of."""

    algorithm: str
    environment: Mapping[str, Any]
    config: Mapping[str, Any] | None = None
    """Seed and config of the run by their dotted names; None where there is none."""


@dataclasses.dataclass(frozen=True)
class Manifest:
    """What one checkpoint holds."""

    algorithm: str
    environment: Mapping[str, Any]
    iteration: int
    score: float | None
    """Mean real return of the policy, by which the best checkpoint is known."""
    state_sha256: str
    shards: tuple[Shard, ...]
    format: int = FORMAT
    pombu: str = __version__
    config: Mapping[str, Any] | None = None
    """Seed and config of the run; None in checkpoints of version 0.1."""
    metrics_checksum: str | None = None
    """Of the rows of `metrics.csv` up to this iteration."""
    cores: int | None = None
    """Cores that the process could use, on which the last digits may depend."""


@dataclasses.dataclass(frozen=True)
class Checkpoint(Generic[S]):
    """A checkpoint read back."""

    path: Path
    manifest: Manifest
    state: S


def save(
    run: Path,
    state: Any,
    store: EpisodeStore,
    identity: Identity,
    iteration: int,
    score: float | None = None,
    metrics_checksum: str | None = None,
) -> Path:
    """Write a checkpoint into a run folder; a crash leaves either all of it or none.

    An earlier one of the same iteration gives way to it.
    """
    folder = run / CHECKPOINTS
    path = folder / f"{iteration:06d}"
    shards = store.save(run / EPISODES)
    data = state_to_bytes(state)
    manifest = Manifest(
        algorithm=identity.algorithm,
        environment=identity.environment,
        iteration=iteration,
        score=score,
        state_sha256=digest(data),
        shards=shards,
        config=identity.config,
        metrics_checksum=metrics_checksum,
        cores=usable_cores(),
    )
    temporary = temporary_name(path)
    with writing(path):
        try:
            temporary.mkdir()
            write_synced(temporary / STATE, data)
            write_synced(temporary / MANIFEST, _manifest_bytes(manifest))
            sync_folder(temporary)
            earlier = set_aside(path) if path.exists() else None
            temporary.rename(path)
            if earlier is not None and not _is_damaged(earlier):
                shutil.rmtree(earlier)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        sync_folder(folder)
    return path


def load(path: Path, template: S, identity: Identity) -> Checkpoint[S]:
    """Read one checkpoint's state, without the episodes.

    Raises:
        DamagedFileError: A file of it is missing or is not what was written.
        UsageError: It belongs to another version, algorithm, environment or config.
    """
    manifest = read_manifest(path)
    _require_identity(path, manifest, identity)
    data = read_checked(path / STATE, manifest.state_sha256)
    try:
        state = state_from_bytes(data, template)
    except ReplacedError as error:
        raise UsageError(
            f"{path} was written by pombu {manifest.pombu} with {error}, which has "
            "been replaced since: use the version that wrote it "
            f"({path.parent.parent / 'versions.json'} names its packages), or train "
            "again in another folder."
        ) from None
    except UsageError as error:
        raise UsageError(
            f"{path} does not fit this run's config ({error}): use the config.json "
            "that it was made with."
        ) from None
    return Checkpoint(path, manifest, state)


def load_latest(
    run: Path, template: S, identity: Identity, warn: Callable[[str], None]
) -> tuple[Checkpoint[S], EpisodeStore] | None:
    """The newest whole checkpoint with its episodes; None if there is none yet.

    Damaged ones are named through `warn` and left as they are.

    Raises:
        RunError: Checkpoints exist and all of them are damaged.
    """
    damaged: list[str] = []
    for path in reversed(paths(run)):
        try:
            checkpoint = load(path, template, identity)
            store = load_episodes(run / EPISODES, checkpoint.manifest.shards)
        except DamagedFileError as error:
            damaged.append(str(error.path))
            warn(f"{error} Trying the checkpoint before {path.name}.")
        else:
            return checkpoint, store
    if damaged:
        raise RunError(
            f"no checkpoint in {run} can be used, because these files are damaged: "
            f"{', '.join(dict.fromkeys(damaged))}; restore them from a copy, or train "
            "again in another folder."
        )
    return None


def best(run: Path) -> Path | None:
    """The checkpoint with the highest score, or the newest where none has one."""
    scored = []
    for path in paths(run):
        try:
            manifest = read_manifest(path)
        except DamagedFileError:
            continue
        scored.append((-math.inf if manifest.score is None else manifest.score, path))
    return max(scored)[1] if scored else None


def prune(run: Path, keep: int) -> None:
    """Remove all but the last `keep` checkpoints and the best one."""
    every = paths(run)
    kept = {*every[-keep:], best(run)}
    for path in every:
        if path not in kept:
            # A crash midway must not leave half a checkpoint under a checkpoint's name.
            doomed = temporary_name(path)
            with writing(path):
                path.rename(doomed)
                shutil.rmtree(doomed)


def set_aside_after(run: Path, iteration: int) -> None:
    """Free the names of checkpoints newer than the one a run goes on from."""
    for path in paths(run):
        if int(path.name) > iteration:
            set_aside(path)


def newest(run: Path) -> Manifest | None:
    """What the newest checkpoint that can be read says about itself."""
    for path in reversed(paths(run)):
        with contextlib.suppress(DamagedFileError):
            return read_manifest(path)
    return None


def last(run: Path) -> Manifest | None:
    """What the last checkpoint says about itself; None where there is none yet.

    Unlike `newest` it does not fall back on an earlier one, which knows fewer episodes.

    Raises:
        RunError: Its manifest is damaged.
    """
    every = paths(run)
    try:
        return read_manifest(every[-1]) if every else None
    except DamagedFileError as error:
        raise RunError(
            f"{error} It says which episodes the run has: restore it, or remove the "
            f"folder {every[-1]} to have those of the checkpoint before."
        ) from None


def shard_checksums(path: str | Path) -> dict[str, str]:
    """The checksum of every file of episodes that a run's last checkpoint names.

    Args:
        path: the run's folder, its folder `episodes` or a file there; anything else
            has none.

    Raises:
        RunError: The checkpoint's manifest is damaged.
    """
    run = Path(path).absolute()
    for folder in (run, run.parent):
        if folder.name == EPISODES:
            run = folder.parent
    saved = last(run)
    return {} if saved is None else {one.file: one.sha256 for one in saved.shards}


def paths(run: Path) -> list[Path]:
    """The checkpoints of a run, oldest first."""
    folder = run / CHECKPOINTS
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if path.name.isdigit())


def read_manifest(path: Path) -> Manifest:
    """What the checkpoint says about itself.

    Raises:
        DamagedFileError: The manifest is missing or is not what was written.
        UsageError: Another version of pombu wrote it.
    """
    file = path / MANIFEST
    try:
        outer = parse_json(file.read_bytes())
        text = outer["manifest"]
        whole = digest(text.encode()) == outer["sha256"]
        content = parse_json(text)
    except FileNotFoundError:
        raise DamagedFileError(file, "it is missing") from None
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        raise DamagedFileError(file, "it cannot be read") from None
    if not whole:
        raise DamagedFileError(file, "its checksum differs")
    if content["format"] != FORMAT:
        raise UsageError(
            f"{path} has checkpoint format {content['format']} (pombu "
            f"{content['pombu']}), and this pombu {__version__} reads format {FORMAT}: "
            "use the version that wrote it."
        )
    # What a later version adds to the same format does not matter to this one.
    known = {field.name for field in dataclasses.fields(Manifest)}
    try:
        content = {name: value for name, value in content.items() if name in known}
        content["shards"] = tuple(Shard(**shard) for shard in content["shards"])
        return Manifest(**content)
    except (TypeError, KeyError):
        raise DamagedFileError(file, "fields are missing or unknown") from None


def clean(run: Path) -> None:
    """Remove what an interrupted write left behind."""
    for folder in (run, run / CHECKPOINTS, run / EPISODES):
        for path in folder.glob(".*.tmp"):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()


def _is_damaged(path: Path) -> bool:
    try:
        read_checked(path / STATE, read_manifest(path).state_sha256)
    except (DamagedFileError, UsageError):
        return True
    return False


def _manifest_bytes(manifest: Manifest) -> bytes:
    text = json.dumps(dataclasses.asdict(manifest))
    return json.dumps({"sha256": digest(text.encode()), "manifest": text}).encode()


def _with_defaults(environment: Mapping[str, Any]) -> dict[str, Any]:
    """An environment's options, also those that its version did not know yet."""
    return {**dataclasses.asdict(EnvConfig()), **environment}


def _require_identity(path: Path, manifest: Manifest, expected: Identity) -> None:
    if manifest.algorithm != expected.algorithm:
        raise UsageError(
            f"{path} is a checkpoint of the algorithm {manifest.algorithm}, not "
            f"{expected.algorithm}: resume it in a run folder of its own."
        )
    if _with_defaults(manifest.environment) != _with_defaults(expected.environment):
        raise UsageError(
            f"{path} is a checkpoint of the environment {dict(manifest.environment)}, "
            f"not {dict(expected.environment)}: resume it in a run folder of its own."
        )
    if manifest.config is None or expected.config is None:
        return
    if changed := changes(manifest.config, expected.config):
        raise UsageError(config_changed(path.parent.parent, changed))


def config_changed(run: Path, changed: Sequence[str]) -> str:
    """What to say of a config that is not the one that a run's checkpoints have."""
    more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
    return (
        f"the config of {run} was changed after its checkpoints were made: "
        f"{', '.join(changed[:3])}{more}; set it back, or train with the new values in "
        "another folder."
    )


def state_to_bytes(state: Any) -> bytes:
    """The arrays of a pytree as a safetensors file."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(state)
    arrays = {_name(path): _plain(_name(path), leaf) for path, leaf in leaves}
    if len(arrays) != len(leaves):
        raise TypeError("two leaves of the state have the same path")
    return safetensors.numpy.save(arrays)


def state_from_bytes(data: bytes, template: S) -> S:
    """The pytree that `state_to_bytes` was given, in the shape of `template`.

    Raises:
        UsageError: The arrays do not fit the template.
    """
    try:
        arrays = safetensors.numpy.load(data)
    except safetensors.SafetensorError as error:
        raise UsageError(f"not a safetensors file: {error}") from None
    leaves, structure = jax.tree_util.tree_flatten_with_path(template)
    names = {_name(path) for path, _ in leaves}
    for start, how in getattr(template, "replaced", {}).items():
        if any(name.startswith(start) for name in arrays):
            raise ReplacedError(how)
    # What an earlier version did not write stays as a fresh state has it.
    for path, leaf in leaves:
        if _name(path) in getattr(template, "added", ()):
            arrays.setdefault(_name(path), _plain(_name(path), leaf))
    if odd := sorted(names ^ set(arrays)):
        where = "not in it" if odd[0] in names else "unknown"
        raise UsageError(f"{odd[0]} is {where}")
    restored = [_like(_name(path), leaf, arrays[_name(path)]) for path, leaf in leaves]
    tree: S = jax.tree_util.tree_unflatten(structure, restored)
    return tree


def _name(path: tuple[Any, ...]) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")


def _plain(name: str, leaf: Any) -> Array:
    """A leaf as an array of a type that the file format knows."""
    if _is_key(leaf):
        leaf = jax.random.key_data(leaf)
    if not isinstance(leaf, jax.Array | np.ndarray | np.generic | bool | int | float):
        raise TypeError(f"{name} is a {type(leaf).__name__}, not an array")
    array = np.asarray(leaf, order="C")
    return array.view(_stored_type(array.dtype))


def _like(name: str, leaf: Any, array: Array) -> Any:
    """The stored array as the same kind of thing as the template's leaf."""
    expected = _plain(name, leaf)
    if (array.shape, array.dtype) != (expected.shape, expected.dtype):
        raise UsageError(
            f"{name} is {array.dtype}{list(array.shape)}, "
            f"expected {expected.dtype}{list(expected.shape)}"
        )
    if _is_key(leaf):
        implementation = jax.random.key_impl(leaf)
        return jax.random.wrap_key_data(jax.numpy.array(array), impl=implementation)
    if isinstance(leaf, jax.Array):
        return jax.numpy.array(array.view(leaf.dtype))
    if isinstance(leaf, np.ndarray):
        return array.view(leaf.dtype).copy()
    return type(leaf)(array.item())


def _is_key(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and jax.numpy.issubdtype(
        leaf.dtype, jax.dtypes.prng_key
    )


def _stored_type(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Types that NumPy does not know, such as bfloat16, are stored by their bits."""
    if dtype.isbuiltin == 1:
        return dtype
    return np.dtype(f"uint{8 * dtype.itemsize}")
