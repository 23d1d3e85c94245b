"""Named configurations for every algorithm and task.

`paper` follows the algorithm's paper. `fast` is what we recommend on a few cores: the
same algorithm with a cheaper schedule. `smoke` is tiny, for tests and for trying a
set-up. The presets of an algorithm are a module of its package with one function for
each; what they share is here: batches in trajectories of a task's length, and small
models.
"""

import difflib
from dataclasses import replace
from typing import Any

from pombu.algorithms import registry
from pombu.dynamics.config import ImaginationConfig, ModelConfig, PlainReturnConfig
from pombu.envs import CATALOGUE, EnvConfig, Task, load, resolve, short_name
from pombu.errors import UsageError
from pombu.optim.config import BaselineConfig

_NAMES = ("paper", "fast", "smoke")


def names() -> tuple[str, ...]:
    """All presets."""
    return _NAMES


def preset(algorithm: str, name: str, env: str, horizon: int | None = None) -> Any:
    """The configuration of an algorithm for a task, by the preset's name.

    An environment that is not pombu's is made once, to see how long its episodes are
    and which of reward and termination it knows; the others are to be learned.

    Args:
        algorithm: as on the command line.
        name: one of `names()`.
        env: a task's full or short name, a Gymnasium id, or `module:factory`.
        horizon: steps per episode, where it is not the task's own.
    """
    _require("algorithm", algorithm, tuple(registry.ALGORITHMS))
    _require("preset", name, _NAMES)
    full = resolve(env)
    environment = EnvConfig(id=full, horizon=horizon)
    values = registry.preset_function(algorithm, name)
    if any(entry.id == full for entry in CATALOGUE):
        task = short_name(full)
        return replace(values(task, horizon), env=environment)
    foreign = load(environment)
    return replace(
        learn_the_unknown(values(full, foreign.horizon), foreign), env=environment
    )


def _require(what: str, given: str, known: tuple[str, ...]) -> None:
    if given not in known:
        near = difflib.get_close_matches(str(given), known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else "choose one of them."
        raise UsageError(
            f"There is no {what} {given!r}; there are {', '.join(known)}: {hint}"
        )


def learn_the_unknown(config: Any, task: Task) -> Any:
    """A config that learns what the task does not know, where it learns a model."""
    model: Any = getattr(config, "model", None)
    fields = getattr(model, "__dataclass_fields__", {})
    unknown = {
        field: "learned"
        for field, function in (("reward", "reward"), ("termination", "terminal"))
        if field in fields and function not in task.known
    }
    return replace(config, model=replace(model, **unknown)) if unknown else config


_USUAL = 200
"""Steps per episode of the paper's tasks."""

FIRST_LOG_STD = -0.7
"""Noise of the first policy in `fast` presets: half of the published one, because a
gait that stands much noise is seldom a fast one, and later there is no way from one to
the other."""

BRANCH_STEPS = 25
"""Steps of a virtual trajectory in `fast` presets, at most; V continues it. In longer
ones most states are the models' own, where a better policy earns no more."""

LONG_BRANCH_STEPS = 40
"""The same where an episode has `LONG_HORIZON` steps: a fall costs the rest of it, and
in shorter branches the policy does not see what leads to one."""

LONG_HORIZON = 1000
"""From this horizon on the paper's table for long tasks holds."""

REAL_STARTS = 0.9
"""Share of virtual trajectories that begin in stored real states in `fast` presets; the
others keep the start distribution in view."""

REWARD_CLIP = 20.0
"""Bound of raw rewards in `fast` presets for pombu's own tasks: above what any policy
earns in a step, while a few imagined runaways cannot spoil the value function."""


def horizon_of(task: str, horizon: int | None) -> int:
    """Steps per episode: those asked for, or the task's own."""
    own = next((entry.horizon for entry in CATALOGUE if entry.name == task), _USUAL)
    return horizon or own


def is_foreign(task: str) -> bool:
    """Whether a task is not one of pombu's, but the user's."""
    return all(task != entry.name for entry in CATALOGUE)


def is_point(task: str) -> bool:
    """Whether it is one of the point tasks, which are small."""
    return task in ("Point2D", "Point3D")


def trajectories(steps: int, horizon: int, multiple: int = 1) -> int:
    """How many trajectories make up about `steps`, at least one per `multiple`."""
    return max(round(steps / (horizon * multiple)), 1) * multiple


def fast_model(task: str, *, afresh_every: int = 0) -> ModelConfig:
    """The ensemble of `fast` presets.

    Many small steps, large at first and falling to nothing in every fit, leave a third
    less error than few constant ones at the same cost. Bounds in epochs, because many
    passes over little data make the members disagree; and in steps, so that a fit costs
    the same however much data there is. Three layers with SiLU: they err a third less
    on held-out steps than two with ReLU, and policies learn faster in them
    (docs/learning.md).

    In a task where imagined trajectories soon fall or fly, a policy finds errors that
    warm starts would carry on from fit to fit, and keeps to them. There a member begins
    afresh after `afresh_every` fits, in turn.

    Products in bfloat16 take little more than half the time where a processor knows
    that format, and the members' errors are far larger than its rounding in pombu's own
    tasks. An environment of the user's may be so simple that they are not: float32.
    """
    return ModelConfig(
        hidden=(256, 256, 256),
        activation="silu",
        precision="float32" if is_foreign(task) else "bfloat16",
        learning_rate=6e-3,
        final_learning_rate=0.0,
        batch_size=250,
        validation_rows=4000,
        validate_every_steps=100,
        max_epochs=40,
        max_steps=2000,
        reinitialise_every=afresh_every,
        reinitialise_in_turn=afresh_every > 1,
    )


def branches(
    samples: int, horizon: int, shards: int = 2, runaway: float = 1e5
) -> ImaginationConfig:
    """Branched imagination of `fast` presets: short, mostly from stored real states.

    Episodes that are hardly longer than one are imagined whole.
    """
    steps = LONG_BRANCH_STEPS if horizon >= LONG_HORIZON else BRANCH_STEPS
    if horizon < 2 * steps:
        steps = horizon
    return ImaginationConfig(
        trajectories=trajectories(samples, steps, shards),
        shards=shards,
        runaway=runaway,
        steps=steps,
        real_starts=REAL_STARTS,
    )


def fast_returns(task: str) -> PlainReturnConfig:
    """Returns of the `fast` presets that improve by TRPO.

    Branches are continued by V. Rewards in units of the real returns' spread and
    clipped advantages, as POMBU has them: without, a few imagined runaways decide where
    a step leads. Rewards are cut at POMBU's bound in pombu's own tasks; what others
    give is not known.
    """
    clip = None if is_foreign(task) or is_point(task) else REWARD_CLIP
    return PlainReturnConfig(lam=0.95, bootstrap=True, reward_clip=clip)


def fast_baseline(samples: int) -> BaselineConfig:
    """V of the `fast` presets that improve by TRPO, for batches of this size."""
    return BaselineConfig(
        kind="network",
        learning_rate=1e-3,
        final_learning_rate=1e-4,
        epochs=5,
        minibatch=min(1000, samples // 4),
    )


def fast_point_model() -> ModelConfig:
    """The same for the point tasks."""
    return ModelConfig(
        hidden=(64, 64),
        learning_rate=1e-3,
        batch_size=200,
        validation_rows=4000,
        validate_every_steps=50,
        max_epochs=200,
        max_steps=400,
        reinitialise_every=0,
    )


def smoke_model(model: ModelConfig, members: int = 3) -> ModelConfig:
    """The model of `smoke` presets: seen to run, not to learn."""
    return replace(
        model,
        hidden=(32, 32),
        activation="relu",
        precision="float32",
        members=members,
        batch_size=64,
        validation_rows=64,
        max_epochs=5,
        max_steps=20,
    )
