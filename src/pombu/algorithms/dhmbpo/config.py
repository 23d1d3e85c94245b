"""The configuration of DHMBPO and DHMBPO-U."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from pombu.algorithms.config import ActorCriticConfig, Growing
from pombu.dynamics.config import HomoscedasticModelConfig
from pombu.envs import EnvConfig
from pombu.errors import (
    Amount,
    Batch,
    Count,
    Episodes,
    InnerShare,
    Iterations,
    Members,
    Positive,
    Range,
    Rows,
    Steps,
    UsageError,
    Whole,
    require_ranges,
)


@dataclass(frozen=True)
class DistributionConfig:
    """Distribution rollouts: where training rollouts start."""

    steps: Steps = 20
    """Steps in the learned dynamics from a stored real state."""
    starts: Batch = 256
    """Stored real states that a rollout starts from."""
    every: Count = 20
    """Updates between two rollouts."""
    kept: Count = 10
    """Latest rollouts whose states training rollouts start from."""

    def __post_init__(self) -> None:
        require_ranges(self, "distribution")


@dataclass(frozen=True)
class SoftActorCriticConfig(ActorCriticConfig):
    """The tanh-Gaussian actor, the ensemble of critics and the entropy temperature."""

    actor_subset: Members | None = None
    """Critics drawn for each update whose mean the actor follows; None takes all. The
    mean of some is right on average, and cheaper."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_drawn("actor_subset", self.actor_subset)


@dataclass(frozen=True)
class DHMBPOConfig(Growing):
    """Double-horizon model-based policy optimisation (Kubo et al., 2025).

    Defaults are the published ones, but for the fit, which is bounded.
    """

    env: EnvConfig = field(default_factory=EnvConfig)
    """The environment."""
    kappa: Amount = 0.0
    """How much the actor avoids uncertainty: it maximises value - kappa sqrt(U)."""
    bonus: Amount = 0.0
    """How much collection seeks uncertainty: of several actions drawn from the policy
    the one with the highest Q + bonus sqrt(U) is taken."""
    trajectories: Episodes = 1
    """Real trajectories per iteration, collected side by side."""
    least_steps: Whole = 0
    """Real steps per iteration, at least: where episodes end early, more rounds of
    trajectories are collected; 0 collects a single round."""
    iterations: Iterations = 200
    """Iterations that are planned."""
    evaluation_episodes: Episodes = 10
    """Real episodes per evaluation; they are not learned from."""
    capacity: Rows = 0
    """Real transitions to make room for; 0 takes what the iterations will collect."""
    learning_starts: Whole = 5000
    """Real steps with random actions, before the first fit."""
    updates_per_step: Annotated[float, Range("[0, 100]")] = 1.0
    """Updates of actor and critics per real step."""
    critic_updates: Whole = 240
    """Updates of the critics alone after each fit."""
    training_steps: Annotated[int, Range("[1, 100]")] = 5
    """Differentiable steps in the learned dynamics per update."""
    batch_size: Batch = 256
    """Training rollouts per update."""
    draw: Literal["step", "rollout"] = "step"
    """When a part of the batch changes to another member: at every step, or never
    within a rollout."""
    gamma: InnerShare = 0.995
    """Discount factor."""
    runaway: Positive = 1e5
    """A rollout ends where an entry of its state is further than this many standard
    deviations of the real ones from their mean; `ended_rollouts` counts it."""
    uncertainty_rows: Batch = 16
    """Training rollouts of an update along which all members predict, for sqrt(U)."""
    uncertainty_tail: bool = False
    """Whether a network U_psi continues U past the training rollout, as it does for
    POMBU's branches; otherwise the critics' variance there stands for it, which says
    little, because all critics learn from the same targets."""
    candidates: Count = 8
    """Actions among which collection with a bonus chooses."""
    model: HomoscedasticModelConfig = field(default_factory=HomoscedasticModelConfig)
    """The learned dynamics and its fit."""
    distribution: DistributionConfig = field(default_factory=DistributionConfig)
    """Distribution rollouts."""
    actor_critic: SoftActorCriticConfig = field(default_factory=SoftActorCriticConfig)
    """Actor, critics and temperature."""

    def __post_init__(self) -> None:
        require_ranges(self)
        if self.uncertainty_rows > self.batch_size:
            raise UsageError(
                f"uncertainty_rows is {self.uncertainty_rows}, more than the "
                f"{self.batch_size} training rollouts of an update: lower it."
            )
        for name, size in (
            ("batch_size", self.batch_size),
            ("distribution.starts", self.distribution.starts),
        ):
            if size % self.model.members:
                raise UsageError(
                    f"{name} is {size}, no multiple of model.members = "
                    f"{self.model.members}: every member moves a part of the same "
                    "size; choose a multiple."
                )
