"""The configuration of SAC."""

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
    Sizes,
    UsageError,
    Whole,
    require_ranges,
)


@dataclass(frozen=True)
class SACConfig:
    """Soft actor-critic (Haarnoja et al., 2018), by Stable-Baselines3.

    Defaults are those of the paper's own baseline.
    """

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
    """Gradient steps per real step."""
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
    tau: PositiveShare = 0.005
    """Share by which target critics follow the critics after each gradient step."""
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
