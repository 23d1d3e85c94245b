"""The configuration of ME-TRPO."""

from dataclasses import dataclass, field

from pombu.algorithms.config import Growing, require_baseline, require_imagination
from pombu.dynamics.config import (
    Draw,
    ImaginationConfig,
    ModelConfig,
    PlainReturnConfig,
)
from pombu.envs import EnvConfig
from pombu.errors import (
    Batch,
    Count,
    Episodes,
    Iterations,
    Rows,
    Share,
    Steps,
    UsageError,
    Whole,
    require_ranges,
)
from pombu.optim.config import BaselineConfig, TRPOPolicyConfig, TrustRegionConfig


@dataclass(frozen=True)
class StopRuleConfig:
    """The original's stop rule: improve for as long as most members agree."""

    use: bool = False
    """Whether to stop by it; `updates` is then only the most that are done."""
    every: Count = 5
    """Policy updates between validations."""
    starts: Batch = 500
    """Fixed first states from which each member is asked for a return."""
    tolerance: Share = 0.3
    """Largest share of members whose return may be worse than at the last save."""
    patience: Count = 25
    """Updates without a save after which to stop and go back to the saved policy."""

    def __post_init__(self) -> None:
        require_ranges(self, "stop_rule")


@dataclass(frozen=True)
class METRPOConfig(Growing):
    """Model-Ensemble Trust-Region Policy Optimization (Kurutach et al., 2018).

    Defaults are those behind the published HalfCheetah numbers, at H=200.
    """

    env: EnvConfig = field(default_factory=EnvConfig)
    """The environment."""
    updates: Count = 20
    """Policy updates per iteration."""
    trajectories: Episodes = 30
    """Real trajectories per iteration."""
    least_steps: Whole = 0
    """Real steps per iteration, at least: where episodes end early, more rounds of
    trajectories are collected; 0 collects a single round (paper)."""
    episode_steps: Steps | None = None
    """Steps after which a real episode that is learned from is cut off, which is no
    termination; evaluations play whole ones. None does as well (paper)."""
    iterations: Iterations = 34
    """Iterations that are planned."""
    evaluation_episodes: Episodes = 20
    """Real episodes per evaluation; they are not learned from."""
    capacity: Rows = 0
    """Real transitions to make room for; 0 takes what the iterations will collect."""
    draw: Draw = "batch"
    """Who draws the member that gives the next state, at every step: the whole batch
    at once, which costs one member's work, or each trajectory for itself."""
    model: ModelConfig = field(
        default_factory=lambda: ModelConfig(
            hidden=(1000, 1000, 1000, 1000),
            learning_rate=1e-3,
            gradient_clip=1e9,
            validation_fraction=1 / 3,
            patience=20,
            max_epochs=200,
            reinitialise_every=0,
        )
    )
    """The learned dynamics and its fit."""
    imagination: ImaginationConfig = field(
        default_factory=lambda: ImaginationConfig(trajectories=250)
    )
    """Virtual trajectories."""
    policy: TRPOPolicyConfig = field(
        default_factory=lambda: TRPOPolicyConfig(reset_std=True)
    )
    """The policy."""
    trust_region: TrustRegionConfig = field(default_factory=TrustRegionConfig)
    """How far one policy update goes."""
    stop_rule: StopRuleConfig = field(default_factory=StopRuleConfig)
    """When to stop improving before all updates are done."""
    baseline: BaselineConfig = field(default_factory=BaselineConfig)
    """What advantages are measured against."""
    returns: PlainReturnConfig = field(
        default_factory=lambda: PlainReturnConfig(
            lam=0.95, reward_clip=None, scale_rewards=False, advantage_clip=None
        )
    )
    """Discount and units of rewards and advantages."""

    def __post_init__(self) -> None:
        require_ranges(self)
        require_imagination(self.imagination, self.returns)
        require_baseline("ME-TRPO", self.baseline, self.returns)
        if self.stop_rule.use and self.model.kind == "simulator":
            raise UsageError(
                "stop_rule.use asks the ensemble's members, and model.kind = simulator "
                "has none: leave one of them out."
            )
