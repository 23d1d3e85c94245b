"""The store of a run's real episodes, in the order collected, and its files.

Episodes are written once, some at a time, into numbered files ("shards") that are never
changed. A checkpoint names the shards it needs by checksum, so saving one costs the
same after 200,000 real steps as after the first.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
from safetensors.numpy import load, save

from pombu.envs import Episode
from pombu.files import digest, read_checked, set_aside, write_atomic

EPISODES = "episodes"
"""The folder of a run that holds the shards."""
KEPT = "kept-"
"""How files begin of episodes that were never learned from; a checksum follows."""


@dataclasses.dataclass(frozen=True)
class Shard:
    """One file of episodes."""

    file: str
    sha256: str
    episodes: int
    steps: int


class EpisodeStore:
    """The real episodes of a run; knows which of them are not on disk yet."""

    def __init__(
        self,
        episodes: Iterable[Episode] = (),
        shards: Iterable[Shard] = (),
        folder: Path | None = None,
    ) -> None:
        """Hold `episodes`, of which `shards` in `folder` already store the first."""
        self._episodes = list(episodes)
        self._shards = list(shards)
        self._folder = folder

    @property
    def steps(self) -> int:
        """Real steps in all episodes."""
        return sum(len(episode) for episode in self._episodes)

    @property
    def shards(self) -> tuple[Shard, ...]:
        """The files written or read so far."""
        return tuple(self._shards)

    @property
    def unsaved(self) -> list[Episode]:
        """The episodes that no shard stores yet."""
        return self._episodes[sum(shard.episodes for shard in self._shards) :]

    def append(self, episodes: Iterable[Episode]) -> None:
        """Add newly collected episodes."""
        self._episodes.extend(episodes)

    def drop_after(self, number: int) -> list[Episode]:
        """Take out all but the first episodes, and give them back."""
        dropped = self._episodes[number:]
        del self._episodes[number:]
        return dropped

    def go_on_after(self, folder: Path, shards: Sequence[Shard]) -> bool:
        """Store only what comes after these shards, if they hold the first episodes."""
        first = 0
        for shard in shards:
            stored = self._episodes[first : first + shard.episodes]
            if not stored or digest(to_bytes(stored)) != shard.sha256:
                return False
            first += shard.episodes
        self._shards, self._folder = list(shards), folder
        return True

    def save(self, folder: Path) -> tuple[Shard, ...]:
        """Write the episodes that are not in this folder yet, and name every shard."""
        if folder != self._folder:
            self._move_to(folder)
        if self.unsaved:
            self._shards.append(
                _write_shard(folder / f"{len(self._shards):05d}", self.unsaved)
            )
        return self.shards

    def _move_to(self, folder: Path) -> None:
        """Write what another folder stores into this one too."""
        first, shards = 0, []
        for number, shard in enumerate(self._shards):
            stored = self._episodes[first : first + shard.episodes]
            shards.append(_write_shard(folder / f"{number:05d}", stored))
            first += shard.episodes
        self._shards, self._folder = shards, folder

    def __len__(self) -> int:
        return len(self._episodes)

    def __getitem__(self, index: int) -> Episode:
        return self._episodes[index]

    def __iter__(self) -> Iterator[Episode]:
        return iter(self._episodes)


def load_episodes(folder: Path, shards: Sequence[Shard]) -> EpisodeStore:
    """Read back the shards that a checkpoint names.

    Raises:
        DamagedFileError: A shard is missing or is not what was written.
    """
    episodes: list[Episode] = []
    for shard in shards:
        episodes += from_bytes(read_checked(folder / shard.file, shard.sha256))
    return EpisodeStore(episodes, shards, folder)


def _write_shard(stem: Path, episodes: Sequence[Episode]) -> Shard:
    """Write one shard; another file of that name is set aside, the same one is kept.

    A run that resumes from before a shard collects the same episodes again.
    """
    path = stem.with_suffix(".safetensors")
    data = to_bytes(episodes)
    shard = Shard(
        file=path.name,
        sha256=digest(data),
        episodes=len(episodes),
        steps=sum(len(episode) for episode in episodes),
    )
    if path.exists():
        if digest(path.read_bytes()) == shard.sha256:
            return shard
        set_aside(path)
    write_atomic(path, data)
    return shard


def write_kept(folder: Path, episodes: Sequence[Episode]) -> Shard:
    """Write episodes that belong to no checkpoint, under a name of their own."""
    return _write_shard(folder / f"{KEPT}{digest(to_bytes(episodes))[:8]}", episodes)


def to_bytes(episodes: Sequence[Episode]) -> bytes:
    """Episodes end to end, with their lengths, as a safetensors file."""
    return save(
        {
            "observations": np.concatenate([one.observations for one in episodes]),
            "actions": np.concatenate([one.actions for one in episodes]),
            "rewards": np.concatenate([one.rewards for one in episodes]),
            "terminated": np.array([one.terminated for one in episodes]),
            "lengths": np.array([len(one) for one in episodes], np.int64),
        }
    )


def from_bytes(data: bytes) -> list[Episode]:
    """The episodes that `to_bytes` was given."""
    arrays = load(data)
    lengths = arrays["lengths"]
    ends = np.cumsum(lengths)[:-1]
    return [
        Episode(observations, actions, rewards, bool(terminated))
        for observations, actions, rewards, terminated in zip(
            np.split(arrays["observations"], np.cumsum(lengths + 1)[:-1]),
            np.split(arrays["actions"], ends),
            np.split(arrays["rewards"], ends),
            arrays["terminated"],
            strict=True,
        )
    ]
