"""Saved runs: the algorithm and the state that a run folder describes."""

from collections.abc import Callable
from typing import Any, Literal

from pombu.algorithms.registry import config_type, make
from pombu.data.episodes import EPISODES, EpisodeStore, load_episodes
from pombu.envs import load, short_name
from pombu.envs.catalogue import HERE
from pombu.errors import RunError, UsageError
from pombu.files import DamagedFileError
from pombu.training import checkpoint, config_file
from pombu.training.algorithm import Algorithm
from pombu.training.checkpoint import Checkpoint
from pombu.training.loop import identity
from pombu.training.run import CONFIG, Run

Which = Literal["last", "best"]


def algorithm_of(run: Run, trusted_env: str | None = None) -> Algorithm[Any]:
    """The algorithm that a run folder describes.

    An environment named `module:factory` is code. A file must not be able to run code,
    so such a name is followed only if the user repeats it.

    Raises:
        UsageError: The folder's config cannot be used, or names code.
    """
    where = f"{run.path / CONFIG}: config"
    config = config_file.from_json(
        config_type(run.spec.algorithm), run.spec.config, where
    )
    name = config.env.id
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
    path = checkpoint.best(run.path)
    if which == "last":
        path = next(reversed(checkpoint.paths(run.path)), None)
    if path is None:
        raise RunError(
            f"{run.path} has no checkpoint yet: train it first, by `pombu resume "
            f"{run.named}`."
        )
    template = algorithm.init(run.spec.seed)
    try:
        return checkpoint.load(path, template, identity(algorithm, run))
    except DamagedFileError as error:
        others = [one.name for one in checkpoint.paths(run.path) if one != path]
        raise RunError(
            f"{error} Other checkpoints: {', '.join(others) or 'none'}; `pombu resume "
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
