"""The configuration of SLBO."""

from dataclasses import dataclass, field

from pombu.algorithms.config import Growing, require_imagination
from pombu.dynamics.config import (
    ImaginationConfig,
    MultiStepModelConfig,
    PlainReturnConfig,
)
from pombu.envs import EnvConfig
from pombu.errors import (
    Amount,
    Count,
    Episodes,
    Iterations,
    Rows,
    Share,
    UsageError,
    Whole,
    require_ranges,
)
from pombu.optim.config import CriticConfig, TRPOPolicyConfig, TrustRegionConfig


@dataclass(frozen=True)
class NoiseConfig:
    """Ornstein-Uhlenbeck noise, added to the policy's actions in policy space."""

    theta: Share = 0.15
    """Share of the noise that is forgotten at each step."""
    sigma: Amount = 0.3
    """Standard deviation of what is added at each step; 0 explores by the policy's own
    noise alone."""

    def __post_init__(self) -> None:
        require_ranges(self, "noise")


@dataclass(frozen=True)
class SLBOConfig(Growing):
    """Stochastic Lower Bound Optimization (Luo et al., 2019).

    Defaults are those behind the published HalfCheetah numbers, at H=200.
    """

    env: EnvConfig = field(default_factory=EnvConfig)
    """The environment."""
    trajectories: Episodes = 50
    """Real trajectories per iteration (a stage)."""
    least_steps: Whole = 0
    """Real steps per iteration, at least: where episodes end early, more rounds of
    trajectories are collected; 0 collects a single round (paper)."""
    iterations: Iterations = 20
    """Iterations that are planned."""
    rounds: Count = 20
    """Rounds per iteration, each of model updates and then policy updates."""
    model_updates: Whole = 100
    """Gradient steps of the model per round."""
    policy_updates: Whole = 40
    """TRPO steps per round, each on virtual trajectories of its own."""
    evaluation_episodes: Episodes = 20
    """Real episodes per evaluation; they are not learned from."""
    capacity: Rows = 0
    """Real transitions to make room for; 0 takes what the iterations will collect."""
    entropy_weight: Amount = 0.005
    """Weight of the policy's entropy within plus or minus 2 in each TRPO step."""
    entropy_iterations: Whole = 50
    """Iterations with the entropy bonus; later ones do without."""
    noise: NoiseConfig = field(default_factory=NoiseConfig)
    """What is added to actions while real data is collected."""
    model: MultiStepModelConfig = field(default_factory=MultiStepModelConfig)
    """The learned dynamics."""
    imagination: ImaginationConfig = field(
        default_factory=lambda: ImaginationConfig(trajectories=20, runaway=1e3)
    )
    """Virtual trajectories. The bound is looser than the 100 standard deviations at
    which the published code clips states."""
    policy: TRPOPolicyConfig = field(default_factory=TRPOPolicyConfig)
    """The policy."""
    trust_region: TrustRegionConfig = field(
        default_factory=lambda: TrustRegionConfig(kl_tolerance=1.5, accept_ratio=0.0)
    )
    """How far one policy update goes."""
    value: CriticConfig = field(
        default_factory=lambda: CriticConfig(
            learning_rate=1e-3,
            final_learning_rate=1e-3,
            epochs=5,
            minibatch=64,
            gradient_clip=1e9,
        )
    )
    """The value function and its update."""
    returns: PlainReturnConfig = field(
        default_factory=lambda: PlainReturnConfig(
            lam=0.95,
            bootstrap=True,
            reward_clip=None,
            scale_rewards=False,
            advantage_clip=None,
        )
    )
    """Discount and units of rewards and advantages."""

    def __post_init__(self) -> None:
        require_ranges(self)
        require_imagination(self.imagination, self.returns)

    def require_full_minibatches(self, horizon: int) -> None:
        """Refuse minibatches that an imagined batch could not fill."""
        steps = self.imagination.horizon(horizon)
        samples = self.imagination.trajectories * steps
        if self.value.minibatch > samples:
            raise UsageError(
                f"value.minibatch is {self.value.minibatch}, larger than an imagined "
                f"batch of {samples} samples: lower it or imagine more trajectories."
            )
