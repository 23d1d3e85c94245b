"""Jobs of a study: what each run is asked for, its config, and its run folder."""

import dataclasses
import difflib
import hashlib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pombu.algorithms import presets
from pombu.algorithms.config import budget
from pombu.algorithms.registry import find, options
from pombu.envs import EnvConfig, load, resolve, short_name
from pombu.errors import UsageError
from pombu.files import safe_name
from pombu.training import config_file
from pombu.training.config_file import flat
from pombu.training.run import CONFIG, RunSpec, open_run

LONGEST_NAME = 150


class OverrideError(UsageError):
    """An override does not fit its algorithm's config."""

    def __init__(self, key: str, sentence: str) -> None:
        self.key = key
        super().__init__(sentence)


@dataclass(frozen=True)
class Job:
    """One run of a study: what is asked for, before a folder is chosen."""

    algorithm: str
    env: EnvConfig
    """The environment; its id may be a short name."""
    seed: int = 0
    preset: str = "fast"
    total_steps: int | None = None
    """Real steps; None takes as many as the preset plans."""
    overrides: tuple[tuple[str, Any], ...] = ()
    """Fields of the config by their dotted names, and their values."""

    @property
    def task(self) -> str:
        """The environment's id as it was given."""
        return self.env.id

    @property
    def name(self) -> str:
        """The run folder's name: the same job always has the same."""
        task = short_name(resolve(self.task))
        parts = [task, self.algorithm, self.preset, *self.env.labels]
        parts += [f"{key}{_spell(value)}" for key, value in self.overrides]
        name = safe_name("-".join(parts))
        if len(name) > LONGEST_NAME:
            name = name[:100] + "-" + hashlib.sha256(name.encode()).hexdigest()[:12]
        return f"{name}-seed{self.seed}"

    def config(self) -> Any:
        """The algorithm's resolved config.

        Raises:
            UsageError: The algorithm, task, preset or an override does not exist.
        """
        find(self.algorithm)
        config = presets.preset(
            self.algorithm, self.preset, self.task, self.env.horizon
        )
        env = dataclasses.replace(self.env, id=resolve(self.task))
        return override(dataclasses.replace(config, env=env), self)

    def spec(self) -> RunSpec:
        """Everything a run folder says about what was asked for.

        Raises:
            UsageError: As for `config`, or PPO would end with a learning rate of 0.
        """
        config = self.config()
        steps = budget(config, lambda: load(config.env).horizon, self.total_steps)
        data = config_file.to_json(config)
        return RunSpec(self.algorithm, self.preset, self.seed, steps, data)


@dataclass(frozen=True)
class Planned:
    """A job with its run folder and what the folder will say."""

    job: Job
    spec: RunSpec
    path: Path


def override(config: Any, job: Job) -> Any:
    """The config with a job's overrides, checked field by field."""
    data = config_file.to_json(config)
    for key, value in job.overrides:
        _set_option(job.algorithm, data, key, value)
        try:
            config = config_file.from_json(type(config), data, job.algorithm)
        except UsageError as error:
            raise OverrideError(key, str(error)) from None
    return config


def require_trusted(tasks: Iterable[str], trusted: Collection[str]) -> None:
    """Refuse code outside pombu that the user has not named.

    A file must not be able to run code, so `module:factory` is followed only if the
    user repeats it.
    """
    for task in tasks:
        if ":" in task and task not in trusted:
            raise UsageError(
                f"{task} is code outside pombu: if you trust it, add --trust {task}."
            )


def plan(jobs: Iterable[Job], folder: Path) -> list[Planned]:
    """Give every job its folder; the same job asked for twice is one run.

    Raises:
        UsageError: Two jobs would share a folder, or a folder holds another run.
    """
    planned: dict[Path, Planned] = {}
    for job in dict.fromkeys(jobs):
        one = Planned(job, job.spec(), folder / job.name)
        other = planned.setdefault(one.path, one)
        if other.spec != one.spec:
            raise UsageError(
                f"two runs of the study would share the folder {one.path} and differ "
                f"in {difference(other.spec, one.spec)}: give them different settings."
            )
    for one in planned.values():
        require_same(one)
    return list(planned.values())


def longest(jobs: Iterable[Job]) -> list[Job]:
    """One job where several differ in their steps alone: the longest answers all."""
    found: dict[object, Job] = {}
    for job in jobs:
        experiment = (job.algorithm, job.preset, job.seed, job.config())
        other = found.get(experiment)
        if other is None or (job.total_steps or 0) > (other.total_steps or 0):
            found[experiment] = job
    return list(found.values())


def require_same(planned: Planned) -> None:
    """Refuse a folder in which there is something else than this job's run."""
    path = planned.path
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        return
    if not (path / CONFIG).exists():
        raise UsageError(
            f"{path} exists and is no run folder: choose another folder for the runs."
        )
    wanted, found = planned.spec, open_run(path).spec
    where = difference(
        wanted, dataclasses.replace(found, total_steps=wanted.total_steps)
    )
    if where:
        raise UsageError(
            f"{path} holds another run, which differs in {where}: choose another "
            "folder for the runs, or remove it."
        )


def difference(one: RunSpec, other: RunSpec) -> str:
    """The settings in which two runs differ, by name; empty where they are alike."""
    first, second = _settings(one), _settings(other)
    keys = dict.fromkeys([*first, *second])
    differ = [key for key in keys if first.get(key) != second.get(key)]
    return ", ".join(differ[:3]) + (" and more" if len(differ) > 3 else "")


def _settings(spec: RunSpec) -> dict[str, Any]:
    asked = ("algorithm", "preset", "seed", "total_steps")
    return {**{name: getattr(spec, name) for name in asked}, **flat(spec.config)}


def _set_option(algorithm: str, data: dict[str, Any], key: str, value: Any) -> None:
    known = options(algorithm)
    if key not in known:
        near = difflib.get_close_matches(key, known, n=1)
        hint = f"did you mean {near[0]}?" if near else f"it has {', '.join(known)}."
        raise OverrideError(key, f"{algorithm} has no option {key}: {hint}")
    *parents, last = key.split(".")
    for parent in parents:
        data = data[parent]
    data[last] = value


def _spell(value: Any) -> str:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "x".join(map(_spell, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
