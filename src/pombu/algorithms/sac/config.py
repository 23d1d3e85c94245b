"""The configurations of SAC, DroQ, TQC and CrossQ, all by sbx."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from pombu.envs import EnvConfig
from pombu.errors import (
    Amount,
    Batch,
    Episodes,
    Finite,
    Iterations,
    PositiveShare,
    Range,
    Rate,
    Share,
    Sizes,
    UsageError,
    Whole,
    require_ranges,
)


@dataclass(frozen=True)
class OffPolicyConfig:
    """What all of them have."""

    env: EnvConfig = field(default_factory=EnvConfig)
    """The environment."""
    trajectories: Episodes = 5
    """Real trajectories per iteration."""
    iterations: Iterations = 200
    """Iterations that are planned."""
    evaluation_episodes: Episodes = 20
    """Real episodes per evaluation; they are not learned from."""
    bout: Episodes = 5
    """Trajectories that are collected side by side before each bout of training."""
    updates_per_step: Annotated[float, Range("[0, 1e4]")] = 1.0
    """Gradient steps of the critics per real step."""
    policy_delay: Annotated[int, Range("[1, 1000]")] = 1
    """Gradient steps of the critics per gradient step of actor and temperature."""
    learning_starts: Whole = 1000
    """Real steps before the first gradient step."""
    start: Literal["policy", "random"] = "policy"
    """Who acts until then: the untrained policy, or uniform random actions."""
    hidden: Sizes = (256, 256)
    """Hidden layer sizes of actor and critics (ReLU)."""
    learning_rate: Rate = 3e-4
    """Adam's step size for actor, critics and temperature."""
    batch_size: Batch = 256
    """Samples per gradient step."""
    capacity: Annotated[int, Range("[1, 1e8]")] = 1_000_000
    """Transitions in the replay buffer; new ones replace the oldest."""
    gamma: PositiveShare = 0.99
    """Discount factor."""
    temperature: Amount | None = None
    """Fixed weight of the entropy; None learns it."""
    target_entropy: Finite | None = None
    """Entropy that a learned temperature aims at; None is minus the action's size."""

    def __post_init__(self) -> None:
        require_ranges(self)
        if self.trajectories % self.bout:
            raise UsageError(
                f"trajectories is {self.trajectories}, which bout = {self.bout} does "
                "not divide: choose a multiple."
            )


@dataclass(frozen=True)
class SACConfig(OffPolicyConfig):
    """Soft actor-critic (Haarnoja et al., 2018), by sbx.

    Defaults are those of the paper's own baseline.
    """

    tau: PositiveShare = 0.005
    """Share by which target critics follow the critics after each gradient step."""


@dataclass(frozen=True)
class DroQConfig(SACConfig):
    """SAC with dropout and layer normalisation in its critics (Hiraoka et al., 2022).

    Defaults are the published ones.
    """

    updates_per_step: Annotated[float, Range("[0, 1e4]")] = 20.0
    """Gradient steps of the critics per real step."""
    policy_delay: Annotated[int, Range("[1, 1000]")] = 20
    """Gradient steps of the critics per gradient step of actor and temperature."""
    learning_starts: Whole = 5000
    """Real steps before the first gradient step."""
    start: Literal["policy", "random"] = "random"
    """Who acts until then: the untrained policy, or uniform random actions."""
    dropout: Annotated[float, Range("[0, 1)")] = 0.01
    """Share of a critic's hidden units that are left out at random."""


@dataclass(frozen=True)
class TQCConfig(SACConfig):
    """Truncated quantile critics (Kuznetsov et al., 2020), by sbx.

    Defaults are the published ones, but with two critics instead of five.
    """

    learning_starts: Whole = 256
    """Real steps before the first gradient step."""
    critic_hidden: Sizes = (512, 512, 512)
    """Hidden layer sizes of the critics (ReLU); `hidden` is the actor's."""
    quantiles: Annotated[int, Range("[1, 1000]")] = 25
    """Quantiles of the return that each critic predicts."""
    dropped_quantiles: Annotated[int, Range("[0, 999]")] = 2
    """The highest quantiles per critic, which targets leave out."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dropped_quantiles >= self.quantiles:
            raise UsageError(
                f"dropped_quantiles is {self.dropped_quantiles}, which leaves none of "
                f"the {self.quantiles} quantiles: choose a smaller number."
            )


@dataclass(frozen=True)
class CrossQConfig(OffPolicyConfig):
    """Batch renormalisation instead of target networks (Bhatt et al., 2024), by sbx.

    Defaults are the published ones.
    """

    policy_delay: Annotated[int, Range("[1, 1000]")] = 3
    """Gradient steps of the critics per gradient step of actor and temperature."""
    learning_starts: Whole = 5000
    """Real steps before the first gradient step."""
    start: Literal["policy", "random"] = "random"
    """Who acts until then: the untrained policy, or uniform random actions."""
    critic_hidden: Sizes = (2048, 2048)
    """Hidden layer sizes of the critics (ReLU); `hidden` is the actor's."""
    learning_rate: Rate = 1e-3
    """Adam's step size for actor, critics and temperature."""
    momentum: Share = 0.99
    """Share of the running mean and variance that a batch leaves as they were."""
    renormalisation_starts: Whole = 100_000
    """Gradient steps of plain batch normalisation before it is renormalised."""
