"""What configs and presets of several algorithms share.

The presets of an algorithm are a module of its package with one function for each. Here
are the parts of several: batches in trajectories of a task's length, and small models.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Any

from pombu.dynamics.config import ImaginationConfig, ModelConfig, PlainReturnConfig
from pombu.envs import CATALOGUE
from pombu.errors import (
    Batch,
    Finite,
    Members,
    Positive,
    PositiveShare,
    Range,
    Rate,
    Share,
    Sizes,
    UsageError,
    require_ranges,
)
from pombu.optim.config import BaselineConfig


class Growing:
    """A config whose real transitions are all kept, however many come."""

    capacity: int
    iterations: int
    trajectories: int

    def rows(self, horizon: int) -> int:
        """Real transitions to make room for."""
        longest = collected_steps(self, horizon)
        return self.capacity or self.iterations * self.trajectories * longest


def collected_steps(config: Any, horizon: int) -> int:
    """Steps of a real episode that is learned from, at most."""
    return min(getattr(config, "episode_steps", None) or horizon, horizon)


@dataclass(frozen=True)
class ActorCriticConfig:
    """A tanh-Gaussian actor, its critics and the entropy temperature."""

    critics: Members = 5
    """Critics."""
    hidden: Sizes = (256, 256, 256)
    """Hidden layer sizes of actor and critics (SiLU; critics with layer
    normalisation)."""
    learning_rate: Rate = 3e-4
    """Adam's step size for actor, critics and temperature."""
    tau: PositiveShare = 0.005
    """Share by which target critics follow the critics after each update."""
    subset: Members = 2
    """Target critics drawn for each update; the least of their values counts."""
    temperature: Positive = 0.1
    """Weight of the entropy at the start."""
    target_entropy: Finite | None = None
    """Entropy that the temperature aims at; None is minus the action's size."""
    keep_moments: bool = False
    """Whether Adam's moments are kept from one iteration to the next; otherwise every
    iteration begins with new ones (as published for DHMBPO)."""
    policy_average: PositiveShare = 1.0
    """Share by which the policy that acts follows the trained actor after each update;
    1 is the actor itself (published). Real steps are always collected by the actor."""
    bound_rate: Share = 3e-4
    """Share by which the bounds of Q follow those of a batch's rewards."""
    bound_quantile: Annotated[float, Range("(0, 0.5)")] = 0.01
    """Quantile of rewards, and of their negatives, that bounds Q."""

    def __post_init__(self) -> None:
        require_ranges(self, "actor_critic")
        self.require_drawn("subset", self.subset)

    def require_drawn(self, name: str, drawn: int | None) -> None:
        """Refuse to draw more critics than there are."""
        if drawn is not None and drawn > self.critics:
            raise UsageError(
                f"actor_critic.{name} is {drawn}, and there are only {self.critics} "
                "critics to draw from: lower it."
            )


@dataclass(frozen=True)
class ExplorationConfig:
    """Exploration policies, which collect all real data after the first iteration."""

    policies: Annotated[int, Range("[0, 1000]")] = 10
    """Exploration policies per iteration; 0 collects with the policy itself."""
    trajectories: Batch = 200
    """Virtual trajectories that each of them is trained on."""
    random_members: bool = True
    """Each exploration policy draws its next states with its own random weighting of
    the members (published code)."""
    centred: bool = False
    """Subtract from the bonus its mean over the trajectories at each step, so that it
    prefers what is more uncertain than usual; otherwise every action is rewarded for
    the uncertainty that all of them share (published code)."""

    def __post_init__(self) -> None:
        require_ranges(self, "exploration")


def require_imagination(
    imagination: ImaginationConfig, returns: PlainReturnConfig
) -> None:
    """Refuse what no model-based method can imagine with."""
    if imagination.trajectories % imagination.shards:
        raise UsageError(
            f"imagination.trajectories is {imagination.trajectories}, which "
            f"imagination.shards = {imagination.shards} does not divide: choose a "
            "multiple."
        )
    if imagination.disagreement_stop is not None and not returns.bootstrap:
        raise UsageError(
            "imagination.disagreement_stop cuts trajectories off where V must go on, "
            "and returns.bootstrap does not ask it: set returns.bootstrap, or leave "
            "the stop out."
        )


def require_baseline(
    name: str,
    baseline: BaselineConfig,
    returns: PlainReturnConfig,
) -> None:
    """Refuse to continue branches with a baseline that says nothing of their end."""
    if returns.bootstrap and baseline.kind == "linear":
        raise UsageError(
            f"returns.bootstrap asks for a value past the horizon, and {name}'s linear "
            "baseline has none: set baseline.kind to network, or leave it out."
        )


def last_iteration(config: Any, preset: str, wanted: int | None = None) -> int | None:
    """The iteration with which a run ends; None leaves that to its real steps.

    `smoke` is a number of iterations: where episodes end early, as many steps as eight
    full ones would take far longer. Steps that the user names are taken.
    """
    return int(config.iterations) if preset == "smoke" and wanted is None else None


def budget(config: Any, horizon: Callable[[], int], wanted: int | None = None) -> int:
    """The real steps wanted, or as many as the config plans.

    The task's horizon is asked for only where it matters, since to know it the
    environment must be made.

    Raises:
        UsageError: PPO would take the last of them with a learning rate of 0.
    """
    if wanted is None:
        steps = collected_steps(config, horizon())
        return int(config.iterations * config.trajectories * steps)
    # PPO's learning rate falls to 0 at the end of the plan.
    if hasattr(config, "require_rate"):
        config.require_rate(wanted, horizon())
    return wanted


_USUAL = 200
"""Steps per episode of the paper's tasks."""

FIRST_LOG_STD = -0.7
"""Noise of the first policy in `fast` presets: half of the published one, because a
gait that stands much noise is seldom a fast one, and later there is no way from one to
the other."""

BRANCH_STEPS = 25
"""Steps of a virtual trajectory in `fast` presets, at most; V continues it. In longer
ones most states are the models' own, where a better policy earns no more."""

LONG_HORIZON = 1000
"""From this horizon on the paper's table for long tasks holds."""

EPISODE_STEPS = 200
"""Steps after which `fast` presets cut off a long episode that is learned from, in
pombu's own tasks: after a fall the rest of it would be data of lying on the back."""

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
    steps = horizon if horizon < 2 * BRANCH_STEPS else BRANCH_STEPS
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
