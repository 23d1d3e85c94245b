"""Runs as files describe them: saved ones in their folders, new ones in config files.

A config file is TOML or JSON with the keys of a run's `config.json`, which is one
itself. What it leaves out comes from the preset.
"""

import dataclasses
import difflib
import math
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, get_type_hints

from pombu.algorithms import registry
from pombu.algorithms.registry import (
    config_type,
    find,
    flat_options,
    make,
    with_options,
)
from pombu.data.episodes import EPISODES, EpisodeStore, load_episodes
from pombu.envs import Task, load, resolve, short_name
from pombu.envs.catalogue import HERE
from pombu.errors import RunError, UsageError
from pombu.files import DamagedFileError, parse_json
from pombu.training import checkpoint, config_file
from pombu.training.algorithm import Algorithm
from pombu.training.checkpoint import Checkpoint
from pombu.training.loop import identity
from pombu.training.run import CONFIG, Run, RunSpec

Which = Literal["last", "best"]


def algorithm_of(
    run: Run, trusted_env: str | None = None, acts: bool = False
) -> Algorithm[Any]:
    """The algorithm that a run folder describes.

    An environment named `module:factory` is code. A file must not be able to run code,
    so such a name is followed only if the user repeats it. Who only `acts`, and never
    asks the environment, does without: the folder keeps its sizes and bounds.

    Raises:
        UsageError: The folder's config cannot be used, or names code.
    """
    where = f"{run.path / CONFIG}: config"
    config = config_file.from_json(
        config_type(run.spec.algorithm), run.spec.config, where
    )
    name = config.env.id
    if acts and ":" in name and trusted_env is None and (kept := run.task()):
        task = Task.without_environment(config.env, kept)
        return make(run.spec.algorithm, task, config)
    if name.startswith(("__main__:", HERE)) and name != trusted_env:
        raise UsageError(
            f"{run.path} was trained on {name.partition(':')[2]}, which only the "
            "script knows that made it: load it there with load(path, env=...) and "
            "what it was trained on, or put the function into a module and train again."
        )
    if trusted_env is not None and trusted_env not in (name, short_name(name)):
        raise UsageError(
            f"{run.path} was trained on {short_name(name)}, not on {trusted_env}: give "
            "that name."
        )
    if ":" in name and name != trusted_env:
        raise UsageError(
            f"{run.path} was trained on {name}, which is code outside pombu: if you "
            f"trust it, add --env {name} (in Python env={name!r})."
        )
    task = load(config.env)
    run.require_observation(task.observation_parts)
    return make(run.spec.algorithm, task, config)


def load_state(run: Run, algorithm: Algorithm[Any], which: Which = "last") -> Any:
    """The state in the last or the best checkpoint."""
    return load_checkpoint(run, algorithm, which).state


def load_run(
    run: Run, algorithm: Algorithm[Any], which: Which, warn: Callable[[str], None]
) -> tuple[Checkpoint[Any], EpisodeStore] | None:
    """The last good checkpoint, or the best one, with its real episodes.

    None where there is no checkpoint yet.
    """
    if which == "last":
        template = algorithm.init(run.spec.seed)
        return checkpoint.load_latest(
            run.path, template, identity(algorithm, run), warn
        )
    if not checkpoint.paths(run.path):
        return None
    found = load_checkpoint(run, algorithm, which)
    return found, load_episodes(run.path / EPISODES, found.manifest.shards)


def load_checkpoint(
    run: Run, algorithm: Algorithm[Any], which: Which = "last"
) -> Checkpoint[Any]:
    """The last or the best checkpoint.

    Raises:
        RunError: There is no checkpoint, or it is damaged.
    """
    every = checkpoint.paths(run.path)
    path = next(reversed(every), None)
    if path is None:
        raise RunError(
            f"{run.path} has no checkpoint yet: train it first, by `pombu resume "
            f"{run.named}`."
        )
    template = algorithm.init(run.spec.seed)
    try:
        if which == "best":
            # The best one cannot be known where one of them does not tell its return.
            for one in every:
                checkpoint.read_manifest(one)
            path = checkpoint.best(run.path) or path
        return checkpoint.load(path, template, identity(algorithm, run))
    except DamagedFileError as error:
        whole = [one.name for one in every if one != error.path.parent]
        raise RunError(
            f"{error} Other checkpoints: {', '.join(whole) or 'none'}; `pombu resume "
            f"{run.named}` goes on from the last good one."
        ) from None


def require_later(run: Run, iteration: int, episodes: EpisodeStore) -> None:
    """Refuse to save over what another agent of the same config went through."""
    saved = checkpoint.newest(run.path)
    if saved is None:
        return
    if saved.iteration > iteration:
        raise UsageError(
            f"{run.path} holds a save of iteration {saved.iteration}, and this agent "
            f"has only had {iteration}: choose another folder."
        )
    if not episodes.go_on_after(run.path / EPISODES, saved.shards):
        raise UsageError(
            f"{run.path} holds an agent with other real episodes: choose another "
            "folder, so that neither of them is lost."
        )


DEFAULT_ENV, DEFAULT_ALGORITHM, DEFAULT_PRESET = "HalfCheetah", "pombu", "fast"
FORMAT = 1
"""What `config.json` and printed config files say first: nothing is left out."""
HEADER = (
    "# Every value of a run, for `pombu train --config FILE`. A flag on the command\n"
    "# line wins over the file. A line may be removed where the default is wanted.\n\n"
)
_KEYS = {
    name: kind for name, kind in get_type_hints(RunSpec).items() if name != "config"
}


@dataclasses.dataclass(frozen=True)
class ConfigFile:
    """What a config file asks for."""

    path: Path
    settings: Mapping[str, Any]
    """Fields of a `RunSpec` that it names, and their values."""
    options: Mapping[str, Any]
    """Fields of the algorithm's config that it names, by dotted names."""
    is_whole: bool = False
    """Whether it leaves nothing out, so that no preset is needed."""

    def config(
        self,
        algorithm: str,
        preset: str = DEFAULT_PRESET,
        env: str | None = None,
        horizon: int | None = None,
    ) -> Any:
        """The whole config, in another environment where one is given.

        Raises:
            UsageError: A key is unknown, a value is not accepted, or the environment
                is code that nobody but the file names.
        """
        named = self.options.get("env.id", DEFAULT_ENV)
        if env is None and ":" in str(named):
            raise UsageError(
                f"{self.path} is about {named}, which is code outside pombu: if you "
                f"trust it, add --env {named} (in Python env={named!r})."
            )
        options = dict(self.options)
        if env is None and not isinstance(named, str):
            raise UsageError(f"{self.path}: env is {named!r}, which is not a name.")
        options["env.id"] = resolve(env or named)
        if horizon is None:
            found = options.get("env.horizon")
            horizon = found if type(found) is int and found > 0 else None
        else:
            options["env.horizon"] = horizon
        config = config_type(algorithm)()
        if not self.is_whole:
            config = registry.preset(algorithm, preset, options["env.id"], horizon)
        try:
            return with_options(algorithm, config, options)
        except UsageError as error:
            raise UsageError(f"{self.path}: {error}") from None


def read_config(path: str | Path) -> ConfigFile:
    """Read a config file; its options are checked once the algorithm is known.

    Raises:
        UsageError: It cannot be read, or a key is unknown or has a wrong value.
    """
    path = Path(path)
    path = path / CONFIG if path.is_dir() else path
    content = _content(path)
    is_whole = content.pop("format", None)
    if is_whole not in (None, FORMAT):
        raise UsageError(f"{path} was not written by this version of pombu.")
    content.pop("sha256", None)  # of the run that it describes; it may be changed
    env = content.pop("env", {})
    parts = {
        "config": content.pop("config", {}),
        "env": {"id": env} if isinstance(env, str) else env,
    }
    for key, part in parts.items():
        if not isinstance(part, dict):
            raise UsageError(f"{path}: {key} is {part!r}, and a table is accepted.")
    options = flat_options({**flat_options(parts["config"]), "env": parts["env"]})
    for key in content:
        if key not in _KEYS:
            raise UsageError(_unknown_key(path, key))
    settings = {
        key: config_file.read_value(_KEYS[key], value, f"{path}: {key}")
        for key, value in content.items()
    }
    find(settings.get("algorithm", DEFAULT_ALGORITHM))
    # What else it must be, such as a range, is for the whole spec to say.
    usual = RunSpec(DEFAULT_ALGORITHM, DEFAULT_PRESET, 0, 1, {})
    share = settings.get("evaluation_share")
    settings |= {"evaluation_share": None} if share == math.inf else {}
    try:
        dataclasses.replace(usual, **settings)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None
    return ConfigFile(path, settings, options, is_whole is not None)


def config_toml(spec: RunSpec, header: str = HEADER) -> str:
    """A run as a config file: `pombu train --config` does the same again."""
    tree = {"format": FORMAT, **dataclasses.asdict(spec)}
    if spec.evaluation_share is None:
        tree["evaluation_share"] = math.inf  # as its flag spells no limit
    return header + config_file.to_toml(tree)


def _content(path: Path) -> dict[str, Any]:
    try:
        data = path.read_bytes()
        if path.suffix == ".json":
            content = parse_json(data)
        else:
            content = config_file.without_none_texts(tomllib.loads(data.decode()))
    except OSError as error:
        raise UsageError(
            f"{path} cannot be read ({error.strerror}): give a config file, such as "
            "`pombu train --print-config` writes or a run's config.json."
        ) from None
    except ValueError as error:
        kind = "JSON" if path.suffix == ".json" else "TOML"
        raise UsageError(f"{path} is no valid {kind}: {error}.") from None
    if not isinstance(content, dict):
        raise UsageError(f"{path} is no config file: it must be a table of keys.")
    return content


def _unknown_key(path: Path, key: str) -> str:
    known = [*_KEYS, "env", "config"]
    near = difflib.get_close_matches(key, known, n=1)
    hint = f"did you mean {near[0]}?" if near else "options belong into [config]."
    return f"{path} has an unknown key {key}; there are {', '.join(known)}: {hint}"
