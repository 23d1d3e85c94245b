"""Saved runs: the algorithm and the state that a run folder describes."""

from typing import Any, Literal

from pombu.algorithms.registry import config_type, make
from pombu.envs import load, short_name
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
    if name.startswith("__main__:") and name != trusted_env:
        raise UsageError(
            f"{run.path} was trained on {name.partition(':')[2]}, a function of the "
            "script that made it: load it there with load(path, env=that function), or "
            "put the function into a module and train again."
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
    return make(run.spec.algorithm, load(config.env), config)


def load_state(run: Run, algorithm: Algorithm[Any], which: Which = "last") -> Any:
    """The state in the last or the best checkpoint."""
    return load_checkpoint(run, algorithm, which).state


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
