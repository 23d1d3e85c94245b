"""The configuration of SAC."""

from dataclasses import dataclass, field
from typing import Literal

from pombu.envs import EnvConfig
from pombu.errors import UsageError, at_least, within


@dataclass(frozen=True)
class SACConfig:
    """Soft actor-critic (Haarnoja et al., 2018), by Stable-Baselines3.

    Defaults are those of the paper's own baseline.
    """

    env: EnvConfig = field(default_factory=EnvConfig)
    """The environment."""
    trajectories: int = 5
    """Real trajectories per iteration."""
    iterations: int = 200
    """Iterations that are planned."""
    evaluation_episodes: int = 20
    """Real episodes per evaluation; they are not learned from."""
    bout: int = 5
    """Trajectories that are collected side by side before each bout of training."""
    updates_per_step: float = 1.0
    """Gradient steps per real step."""
    learning_starts: int = 1000
    """Real steps before the first gradient step."""
    start: Literal["policy", "random"] = "policy"
    """Who acts until then: the untrained policy, or uniform random actions."""
    hidden: tuple[int, ...] = (256, 256)
    """Hidden layer sizes of actor and critics (ReLU)."""
    learning_rate: float = 3e-4
    """Adam's step size for actor, critics and temperature."""
    batch_size: int = 256
    """Samples per gradient step."""
    capacity: int = 1_000_000
    """Transitions in the replay buffer; new ones replace the oldest."""
    gamma: float = 0.99
    """Discount factor."""
    tau: float = 0.005
    """Share by which target critics follow the critics after each gradient step."""
    temperature: float | None = None
    """Fixed weight of the entropy; None learns it."""
    target_entropy: float | None = None
    """Entropy that a learned temperature aims at; None is minus the action's size."""

    def __post_init__(self) -> None:
        for name in ("trajectories", "iterations", "evaluation_episodes", "bout"):
            at_least(name, getattr(self, name), 1)
        for name in ("batch_size", "capacity"):
            at_least(name, getattr(self, name), 1)
        at_least("updates_per_step", self.updates_per_step, 0)
        at_least("learning_starts", self.learning_starts, 0)
        if self.trajectories % self.bout:
            raise UsageError(
                f"trajectories is {self.trajectories}, which bout = {self.bout} does "
                "not divide: choose a multiple."
            )
        within("gamma", self.gamma, "(0, 1]", 0 < self.gamma <= 1)
        within("tau", self.tau, "(0, 1]", 0 < self.tau <= 1)
