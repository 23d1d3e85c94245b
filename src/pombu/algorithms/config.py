"""What the configs of several algorithms share."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from pombu.dynamics.config import ImaginationConfig, PlainReturnConfig
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
        return self.capacity or self.iterations * self.trajectories * horizon


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
        return int(config.iterations * config.trajectories * horizon())
    # PPO's learning rate falls to 0 at the end of the plan.
    if hasattr(config, "require_rate"):
        config.require_rate(wanted, horizon())
    return wanted
