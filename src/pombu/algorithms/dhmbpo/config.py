"""The configuration of DHMBPO and DHMBPO-U."""

from dataclasses import dataclass, field
from typing import Literal

from pombu.algorithms.config import Growing
from pombu.dynamics.config import HomoscedasticModelConfig
from pombu.envs import EnvConfig
from pombu.errors import UsageError, at_least, within


@dataclass(frozen=True)
class DistributionConfig:
    """Distribution rollouts: where training rollouts start."""

    steps: int = 20
    """Steps in the learned dynamics from a stored real state."""
    starts: int = 256
    """Stored real states that a rollout starts from."""
    every: int = 20
    """Updates between two rollouts."""
    kept: int = 10
    """Latest rollouts whose states training rollouts start from."""

    def __post_init__(self) -> None:
        for name in ("steps", "starts", "every", "kept"):
            at_least(f"distribution.{name}", getattr(self, name), 1)


@dataclass(frozen=True)
class SoftActorCriticConfig:
    """The tanh-Gaussian actor, the ensemble of critics and the entropy temperature."""

    critics: int = 5
    """Critics."""
    hidden: tuple[int, ...] = (256, 256, 256)
    """Hidden layer sizes of actor and critics (SiLU; critics with layer
    normalisation)."""
    learning_rate: float = 3e-4
    """Adam's step size for actor, critics and temperature."""
    tau: float = 0.005
    """Share by which target critics follow the critics after each update."""
    subset: int = 2
    """Target critics drawn for each update; the least of their values counts."""
    temperature: float = 0.1
    """Weight of the entropy at the start."""
    target_entropy: float | None = None
    """Entropy that the temperature aims at; None is minus the action's size."""
    bound_rate: float = 3e-4
    """Share by which the bounds of Q follow those of a batch's rewards."""
    bound_quantile: float = 0.01
    """Quantile of rewards, and of their negatives, that bounds Q."""

    def __post_init__(self) -> None:
        at_least("actor_critic.critics", self.critics, 1)
        within(
            "actor_critic.subset",
            self.subset,
            f"[1, {self.critics}], the number of critics",
            1 <= self.subset <= self.critics,
        )
        positive = self.temperature > 0
        within("actor_critic.temperature", self.temperature, "(0, infinity)", positive)
        within("actor_critic.tau", self.tau, "(0, 1]", 0 < self.tau <= 1)


@dataclass(frozen=True)
class DHMBPOConfig(Growing):
    """Double-horizon model-based policy optimisation (Kubo et al., 2025).

    Defaults are the published ones, but for the fit, which is bounded.
    """

    env: EnvConfig = field(default_factory=EnvConfig)
    """The environment."""
    kappa: float = 0.0
    """How much the actor avoids uncertainty: it maximises value - kappa sqrt(U)."""
    bonus: float = 0.0
    """How much collection seeks uncertainty: of several actions drawn from the policy
    the one with the highest Q + bonus sqrt(U) is taken."""
    trajectories: int = 1
    """Real trajectories per iteration, collected side by side."""
    least_steps: int = 0
    """Real steps per iteration, at least: where episodes end early, more rounds of
    trajectories are collected; 0 collects a single round."""
    iterations: int = 200
    """Iterations that are planned."""
    evaluation_episodes: int = 10
    """Real episodes per evaluation; they are not learned from."""
    capacity: int = 0
    """Real transitions to make room for; 0 takes what the iterations will collect."""
    learning_starts: int = 5000
    """Real steps with random actions, before the first fit."""
    updates_per_step: float = 1.0
    """Updates of actor and critics per real step."""
    critic_updates: int = 240
    """Updates of the critics alone after each fit."""
    training_steps: int = 5
    """Differentiable steps in the learned dynamics per update."""
    batch_size: int = 256
    """Training rollouts per update."""
    draw: Literal["step", "rollout"] = "step"
    """When a part of the batch changes to another member: at every step, or never
    within a rollout."""
    gamma: float = 0.995
    """Discount factor."""
    runaway: float = 1e5
    """A rollout whose state leaves plus or minus this ends there and is counted."""
    uncertainty_rows: int = 16
    """Training rollouts of an update along which all members predict, for sqrt(U)."""
    candidates: int = 8
    """Actions among which collection with a bonus chooses."""
    model: HomoscedasticModelConfig = field(default_factory=HomoscedasticModelConfig)
    """The learned dynamics and its fit."""
    distribution: DistributionConfig = field(default_factory=DistributionConfig)
    """Distribution rollouts."""
    actor_critic: SoftActorCriticConfig = field(default_factory=SoftActorCriticConfig)
    """Actor, critics and temperature."""

    def __post_init__(self) -> None:
        for name in ("trajectories", "iterations", "evaluation_episodes"):
            at_least(name, getattr(self, name), 1)
        for name in ("training_steps", "batch_size", "candidates"):
            at_least(name, getattr(self, name), 1)
        for name in ("kappa", "bonus", "capacity", "least_steps", "learning_starts"):
            at_least(name, getattr(self, name), 0)
        at_least("critic_updates", self.critic_updates, 0)
        at_least("updates_per_step", self.updates_per_step, 0)
        within("gamma", self.gamma, "(0, 1)", 0 < self.gamma < 1)
        rows = self.uncertainty_rows
        within(
            "uncertainty_rows",
            rows,
            f"[1, {self.batch_size}], the batch",
            1 <= rows <= self.batch_size,
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
