"""Real transitions from elsewhere: another run's, or logged by something else.

Of pombu's own, a run folder gives all its real episodes, and a file of its `episodes`
folder those within: also `kept-*`, the last ones of a run that could not go on.
`minari:NAME` is a Minari dataset on this machine (extra `minari`). Everything else is
one .npz file.

The arrays have Minari's names, with the episodes end to end:

observations   [n + e, ...]  of e episodes; each has one more than it has steps
actions        [n, ...]      in the environment's own units
rewards        [n]
terminations   [n]           True where the step ended the episode for good
truncations    [n]           True where a time limit cut it off

Loose transitions may be given instead: `observations` and `next_observations`, both
[n, ...]. An episode then also ends where the next row does not begin where it stopped.
"""

import math
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces
from safetensors import SafetensorError

from pombu.data.episodes import EPISODES, KEPT, from_bytes
from pombu.envs import Episode, Task
from pombu.envs.wrappers import flatten_rows, leaves_of, stack_episode
from pombu.errors import UsageError
from pombu.files import DamagedFileError, as_path, digest

__all__ = ["read_logged", "write_logged"]

NEEDED = ("observations", "actions", "rewards", "terminations", "truncations")
READ = (*NEEDED, "next_observations")
"""Other arrays of a file are left alone, however large they are."""
MINARI = "minari:"
"""What a Minari dataset's name is preceded by."""


def write_logged(path: str | Path, episodes: Sequence[Episode]) -> None:
    """Write episodes as a file that `read_logged` and `--data` take.

    Raises:
        UsageError: There are none.
    """
    path = as_path("path", path)
    try:
        several = len(episodes) > 0 and all(isinstance(e, Episode) for e in episodes)
    except TypeError:
        several = False
    if not several:
        raise UsageError(
            f"There are no episodes to write, but {episodes!r:.80}: give a list of at "
            "least one."
        )
    last = np.cumsum([len(episode) for episode in episodes]) - 1
    terminations = np.zeros(last[-1] + 1, bool)
    truncations = np.zeros(last[-1] + 1, bool)
    ended = np.array([episode.terminated for episode in episodes])
    terminations[last], truncations[last] = ended, ~ended
    np.savez_compressed(
        path,
        observations=np.concatenate([episode.observations for episode in episodes]),
        actions=np.concatenate([episode.actions for episode in episodes]),
        rewards=np.concatenate([episode.rewards for episode in episodes]),
        terminations=terminations,
        truncations=truncations,
    )


def read_logged(
    path: str | Path, task: Task, checksums: Mapping[str, str] | None = None
) -> list[Episode]:
    """The episodes in a file, a run folder or a Minari dataset, for a task.

    Where the task's states hold several observations, single ones are stacked.

    Args:
        path: an .npz file, a run folder, or a file of its `episodes`.
        task: what the episodes must fit.
        checksums: of the files that a run's checkpoint knows, by name.

    Raises:
        UsageError: There are none, or they do not fit the task.
        DamagedFileError: A file of a run is missing or is not as it was written.
    """
    if str(path).startswith(MINARI):
        return _stacked(_of_minari(str(path), task), task)
    path = as_path("data", path)
    if not path.exists():
        raise UsageError(
            f"There is no file or folder {path}: give an .npz file, a run's folder, or "
            "minari:NAME for a Minari dataset."
        )
    if path.is_dir() or path.suffix == ".safetensors":
        episodes = _own(path, task, checksums or {})
    else:
        episodes = _in_arrays(path, _read(path), task)
    return _stacked(episodes, task)


def _stacked(episodes: Sequence[Episode], task: Task) -> list[Episode]:
    """Episodes of single observations as ones of as many as a state holds."""
    history = task.config.history
    return [
        episode
        if episode.observations.shape[1] == task.observation_dim
        else replace(episode, observations=stack_episode(episode.observations, history))
        for episode in episodes
    ]


def _in_arrays(
    path: str | Path, arrays: Mapping[str, np.ndarray], task: Task
) -> list[Episode]:
    """What arrays of these names have."""
    missing = [name for name in NEEDED if name not in arrays]
    if missing:
        raise UsageError(
            f"{path} has no array {missing[0]!r}; it must have {', '.join(NEEDED)}."
        )
    steps = np.size(arrays["rewards"])
    seen = arrays["observations"]
    alone = np.size(seen) == len(np.atleast_1d(seen)) * task.frame_dim
    dim = task.frame_dim if alone else task.observation_dim
    rows = {
        "observations": _rows(path, arrays, "observations", dim),
        "actions": _rows(path, arrays, "actions", task.action_dim),
        "rewards": _rows(path, arrays, "rewards", 1)[:, 0],
    }
    ends = {name: np.asarray(arrays[name]).ravel() for name in NEEDED[3:]}
    for name, array in {**ends, "actions": rows["actions"]}.items():
        if len(array) != steps or not steps:
            raise UsageError(
                f"{path} has {steps} rewards and {len(array)} rows of {name}: give as "
                "many of each, and at least one."
            )
    rows["actions"] = task.action_box.clip(rows["actions"])
    terminated = ends["terminations"].astype(bool)
    over = terminated | ends["truncations"].astype(bool)
    over[-1] = True
    if "next_observations" in arrays:
        following = _rows(path, arrays, "next_observations", dim)
        return _from_transitions(path, rows, following, terminated, over)
    return _from_episodes(path, rows, terminated, over)


def _of_minari(path: str, task: Task) -> list[Episode]:
    """What a Minari dataset on this machine has; nothing is downloaded."""
    name = path.removeprefix(MINARI)
    try:
        import minari
    except ImportError as error:
        raise UsageError(
            f"{path} needs Minari: install it with `pip install 'pombu[minari]'`."
        ) from error
    try:
        dataset = minari.load_dataset(name)
        _require_spaces(path, dataset.observation_space, dataset.action_space, task)
        episodes = [one for one in dataset.iterate_episodes() if len(one.rewards)]
    except FileNotFoundError:
        raise UsageError(
            f"There is no Minari dataset {name!r} on this machine: `minari download "
            f"{name}` fetches it, and `minari list local` shows those that are here."
        ) from None
    except (ImportError, OSError, ValueError, KeyError, AssertionError) as error:
        raise UsageError(
            f"{path} cannot be read ({error}): download it again, or write its "
            "episodes into an .npz file."
        ) from None
    if not episodes:
        raise UsageError(f"{path} has no episodes: give a dataset that has some.")
    steps = [len(episode.rewards) for episode in episodes]
    last = np.cumsum(steps) - 1
    ended = np.array([bool(episode.terminations[-1]) for episode in episodes])
    terminations, truncations = np.zeros((2, sum(steps)), bool)
    terminations[last], truncations[last] = ended, ~ended
    arrays = {
        "observations": np.concatenate(
            [_flat(episode.observations, task) for episode in episodes]
        ),
        "actions": np.concatenate([episode.actions for episode in episodes]),
        "rewards": np.concatenate([episode.rewards for episode in episodes]),
        "terminations": terminations,
        "truncations": truncations,
    }
    return _in_arrays(path, arrays, task)


def _flat(observations: Any, task: Task) -> np.ndarray:
    """An episode's observations as rows, flattened as the task's are."""
    if task.layout is not None:
        return flatten_rows(task.layout, observations)
    return np.asarray(observations).reshape(len(observations), -1)


def _require_spaces(
    path: str, observations: spaces.Space[Any], actions: spaces.Space[Any], task: Task
) -> None:
    """Refuse data of other observations or actions than the task has.

    Entries of a Dict are known by their keys, in whatever order they are.
    """
    box = task.action_box
    if task.observation_shape is None and isinstance(observations, spaces.Box):
        # Of a stack of observations only the size of one is known.
        observations = spaces.flatten_space(observations)
    own = spaces.Box(-np.inf, np.inf, task.observation_shape or (task.frame_dim,))
    wanted = own if task.layout is None else task.layout
    bounds = np.reshape([box.low, box.high], (2, *(box.shape or (box.dim,))))
    for kind, given, due in (
        ("observations", _parts(observations), _parts(wanted)),
        ("actions", _parts(actions), {"": bounds.shape[1:]}),
    ):
        if given != due:
            raise UsageError(
                f"{path} has {kind} {_told(given)}, and {task.config.id} has "
                f"{_told(due)}: give a dataset of the same environment."
            )
    assert isinstance(actions, spaces.Box)
    theirs = np.stack([actions.low, actions.high])
    known = np.isfinite(theirs)
    if not np.allclose(theirs[known], bounds[known], 1e-5, 1e-6):
        raise UsageError(
            f"{path} has actions in [{theirs[0].min():g}, {theirs[1].max():g}], and "
            f"{task.config.id} in [{bounds[0].min():g}, {bounds[1].max():g}] (or some "
            "of their bounds differ): their units are not the same; give a dataset of "
            "the same environment."
        )


def _parts(space: spaces.Space[Any]) -> dict[str, Any]:
    """The shape, or the numbers of choices, of each part of a space by its path."""
    found: dict[str, Any] = {}
    for leaf in leaves_of(space):
        of = {k: v for k, v in leaf.described.items() if k not in ("path", "begin")}
        plain = tuple(of["shape"]) if isinstance(leaf.space, spaces.Box) else str(of)
        found[".".join(map(str, leaf.path))] = plain
    return found


def _told(parts: Mapping[str, Any]) -> str:
    """Parts of a space for a sentence."""
    named = [f"{name} {of}".strip() for name, of in parts.items()]
    return f"of {', '.join(named)}"


def _own(path: Path, task: Task, checksums: Mapping[str, str]) -> list[Episode]:
    """What pombu itself has written."""
    folder = path / EPISODES if (path / EPISODES).is_dir() else path
    files = [path]
    if path.is_dir():
        # What an interrupted iteration left is read only where there is nothing else: a
        # run that went on has collected the same episodes again.
        known = [folder / name for name in sorted(checksums)]
        learned = known or sorted(folder.glob("[0-9]*.safetensors"))
        files = learned or sorted(folder.glob("*.safetensors"))
    episodes: list[Episode] = []
    for file in files:
        try:
            data = file.read_bytes() if file.exists() else b""
            _require_whole(file, data, checksums.get(file.name))
            episodes += from_bytes(data)
        except (OSError, KeyError, ValueError, SafetensorError) as error:
            raise UsageError(
                f"{file} cannot be read ({type(error).__name__}): give a run folder, a "
                "file of its episodes, or an .npz file."
            ) from None
    if not episodes:
        raise UsageError(f"{path} has no real episodes: give a run that has some.")
    for episode in episodes:
        for name in ("observations", "actions", "rewards"):
            if not np.isfinite(getattr(episode, name)).all():
                raise UsageError(
                    f"{path} has {name} that are not finite: leave those episodes out."
                )
    widths = {(e.observations.shape[1], e.actions.shape[1]) for e in episodes}
    fit = [{(dim, task.action_dim)} for dim in (task.observation_dim, task.frame_dim)]
    if widths not in fit:
        raise UsageError(
            f"{path} has observations and actions of sizes {sorted(widths)}, and "
            f"{task.config.id} has {(task.observation_dim, task.action_dim)}: give "
            "episodes of the same task."
        )
    return episodes


def _require_whole(file: Path, data: bytes, checksum: str | None) -> None:
    """Refuse a file that is not what its checkpoint, or its own name, says."""
    found, kept = digest(data), file.stem.removeprefix(KEPT)
    named = file.stem.startswith(KEPT) and not found.startswith(kept)
    if named or checksum not in (None, found):
        raise DamagedFileError(file, "its checksum differs, or it is missing")


def _read(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an .npz file; nothing in it can run code."""
    try:
        with zipfile.ZipFile(path) as archive:
            return {
                name.removesuffix(".npy"): _array(archive, name)
                for name in archive.namelist()
                if name.removesuffix(".npy") in READ
            }
    except MemoryError:
        raise UsageError(
            f"{path} has arrays that do not fit into memory: give fewer transitions."
        ) from None
    except (
        OSError,
        ValueError,
        RuntimeError,
        OverflowError,
        zipfile.BadZipFile,
        zlib.error,
    ) as error:
        raise UsageError(
            f"{path} cannot be read ({error}): give an .npz file as np.savez writes it."
        ) from None


def _array(archive: zipfile.ZipFile, name: str) -> np.ndarray:
    # A header may promise more than the file holds: room is made for what it has.
    stored = archive.getinfo(name).file_size
    with archive.open(name) as file:
        if np.lib.format.read_magic(file) == (1, 0):
            shape, _, dtype = np.lib.format.read_array_header_1_0(file)
        else:
            shape, _, dtype = np.lib.format.read_array_header_2_0(file)
        if dtype.hasobject:
            raise ValueError(f"{name} holds Python objects")
        if math.prod(shape) * dtype.itemsize > stored:
            raise ValueError(f"{name} is shorter than its header says")
    with archive.open(name) as file:
        array: np.ndarray = np.lib.format.read_array(file)
    return array


def _rows(
    path: str | Path, arrays: Mapping[str, np.ndarray], name: str, dim: int
) -> np.ndarray:
    """One of the arrays as finite float32 rows."""
    try:
        array = np.asarray(arrays[name], np.float32)
    except (TypeError, ValueError):
        raise UsageError(
            f"{path} has {name} of type {arrays[name].dtype}: give numbers."
        ) from None
    if not array.ndim or array.size != len(array) * dim:
        raise UsageError(
            f"{path} has {name} of shape {array.shape}, but the environment's have "
            f"{dim} entries each."
        )
    if not np.isfinite(array).all():
        raise UsageError(f"{path} has {name} that are not finite: leave those out.")
    return array.reshape(-1, dim)


def _from_episodes(
    path: str | Path,
    rows: Mapping[str, np.ndarray],
    terminated: np.ndarray,
    over: np.ndarray,
) -> list[Episode]:
    lengths = np.diff(np.flatnonzero(over), prepend=-1)
    expected = len(over) + len(lengths)
    observations = rows["observations"]
    if len(observations) != expected:
        raise UsageError(
            f"{path} has {len(observations)} observations, but {len(over)} steps in "
            f"{len(lengths)} episodes have {expected}: an episode has one more "
            "observation than steps (or give next_observations)."
        )
    at = np.cumsum(lengths)
    parts = zip(
        np.split(observations, (at + np.arange(1, len(at) + 1))[:-1]),
        np.split(rows["actions"], at[:-1]),
        np.split(rows["rewards"], at[:-1]),
        terminated[at - 1],
        strict=True,
    )
    return [Episode(o, a, r, bool(ended)) for o, a, r, ended in parts]


def _from_transitions(
    path: str | Path,
    rows: Mapping[str, np.ndarray],
    following: np.ndarray,
    terminated: np.ndarray,
    over: np.ndarray,
) -> list[Episode]:
    before = rows["observations"]
    if len(before) != len(over) or len(following) != len(over):
        raise UsageError(
            f"{path} has {len(over)} steps, {len(before)} observations and "
            f"{len(following)} next_observations: give as many of each."
        )
    jumps = np.any(following[:-1] != before[1:], 1)
    over = over | np.append(jumps, True)
    # Each episode's own last state is put after its states.
    ends = np.flatnonzero(over)
    joined = np.insert(before, ends + 1, following[ends], axis=0)
    return _from_episodes(path, {**rows, "observations": joined}, terminated, over)
