"""The configuration of MB-MPO."""

from dataclasses import dataclass, field
from typing import Annotated

from pombu.algorithms.config import Growing, require_baseline, require_imagination
from pombu.dynamics.config import ImaginationConfig, ModelConfig, PlainReturnConfig
from pombu.envs import EnvConfig
from pombu.errors import (
    Amount,
    Episodes,
    Iterations,
    Range,
    Rows,
    UsageError,
    Whole,
    require_ranges,
)
from pombu.optim.config import BaselineConfig, TRPOPolicyConfig, TrustRegionConfig


@dataclass(frozen=True)
class MBMPOConfig(Growing):
    """Model-Based Meta-Policy Optimization (Clavera et al., 2018).

    Defaults are the published ones, at H=200.
    """

    env: EnvConfig = field(default_factory=EnvConfig)
    """The environment."""
    inner_rate: Amount = 1e-3
    """alpha, size of the gradient step by which the policy adapts to a model."""
    updates: Whole = 30
    """Meta-steps per iteration."""
    tasks_per_member: Annotated[int, Range("[1, 1000]")] = 4
    """Tasks for each member: every one is adapted to on trajectories of its own."""
    trajectories: Episodes = 20
    """Real trajectories per iteration, shared out between the adapted policies."""
    iterations: Iterations = 50
    """Iterations that are planned."""
    evaluation_episodes: Episodes = 20
    """Real episodes per evaluation of the policy before adaptation; they are not
    learned from."""
    capacity: Rows = 0
    """Real transitions to make room for; 0 takes what the iterations will collect."""
    model: ModelConfig = field(
        default_factory=lambda: ModelConfig(
            learning_rate=1e-3,
            batch_size=500,
            gradient_clip=1e9,
            max_epochs=500,
            reinitialise_every=0,
        )
    )
    """The learned dynamics and their fit."""
    imagination: ImaginationConfig = field(
        default_factory=lambda: ImaginationConfig(
            trajectories=50, shards=1, runaway=1e3
        )
    )
    """Virtual trajectories of each task, as many before as after adaptation; tasks, not
    shards of them, run side by side. The published code clips states at 1000, in their
    own units."""
    policy: TRPOPolicyConfig = field(default_factory=TRPOPolicyConfig)
    """The policy."""
    trust_region: TrustRegionConfig = field(
        default_factory=lambda: TrustRegionConfig(
            damping=1e-5, backtrack=0.8, backtracks=15, accept_ratio=0.0
        )
    )
    """How far one meta-step goes."""
    baseline: BaselineConfig = field(default_factory=BaselineConfig)
    """What advantages are measured against."""
    returns: PlainReturnConfig = field(
        default_factory=lambda: PlainReturnConfig(
            reward_clip=None, scale_rewards=False, advantage_clip=None
        )
    )
    """Discount and units of rewards and advantages."""

    def __post_init__(self) -> None:
        require_ranges(self)
        require_imagination(self.imagination, self.returns)
        require_baseline("MB-MPO", self.baseline, self.returns)
        if self.model.kind == "simulator":
            raise UsageError(
                "model.kind = simulator is a single environment, and MB-MPO adapts to "
                "several: leave it out."
            )

    @property
    def tasks(self) -> int:
        """Tasks to adapt to: every member, as often as configured."""
        return self.model.members * self.tasks_per_member
