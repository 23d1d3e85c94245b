"""The configuration of POMBU and of MEPPO."""

from dataclasses import dataclass, field
from typing import SupportsFloat

from pombu.algorithms.config import ExplorationConfig, Growing, require_imagination
from pombu.dynamics.config import ImaginationConfig, ModelConfig, ReturnConfig
from pombu.envs import EnvConfig
from pombu.errors import (
    Amount,
    Episodes,
    Iterations,
    Rows,
    Steps,
    UsageError,
    Whole,
    require_ranges,
)
from pombu.optim.config import PolicyConfig, TailConfig, ValueConfig
from pombu.uncertainty.n_step import LEAST_EPISODES

ALPHA_FACTOR = 1.3
"""How fast alpha gives way, per update."""

ALPHA_FLOOR = 0.01
"""The least share of the configured alpha that stays."""


@dataclass(frozen=True)
class CalibrationConfig:
    """How the uncertainty of Q-values is corrected by real returns."""

    use: bool = False
    """Whether every evaluation of five or more episodes also fits the scale of the
    uncertainty, and how errors of different steps depend, to n-step returns of its real
    episodes. It costs no real steps and changes nothing in learning."""


@dataclass(frozen=True)
class POMBUConfig(Growing):
    """Policy Optimization with Model-Based Uncertainty (Algorithm 2)."""

    env: EnvConfig = field(default_factory=EnvConfig)
    """The environment."""
    alpha: Amount = 0.5
    """How much the uncertainty of the surrogate objective is penalised."""
    minimum_kl: Amount | None = None
    """While an update's KL stays below this, alpha shrinks, to a hundredth at most, and
    above twice this it grows back, so that the penalty cannot stop the policy
    altogether; None keeps alpha as it is (paper)."""
    beta: Amount = 10.0
    """How much exploration policies seek uncertainty."""
    kappa: Amount = 0.0
    """How much the policy avoids uncertainty: its advantages are A - kappa sqrt(D),
    with sqrt(D) centred over the batch at each step, so that what is unknown is worth
    less than what is known (paper: 0)."""
    updates: Whole = 20
    """M, policy updates per iteration."""
    trajectories: Episodes = 10
    """N, real trajectories per iteration."""
    least_steps: Whole = 0
    """Real steps per iteration, at least: where episodes end early, more rounds of
    trajectories are collected; 0 collects a single round (paper)."""
    episode_steps: Steps | None = None
    """Steps after which a real episode that is learned from is cut off, which is no
    termination; evaluations play whole ones. None does as well (paper)."""
    iterations: Iterations = 100
    """Iterations over which learning rates fall."""
    evaluation_episodes: Episodes = 20
    """Real episodes per evaluation; they are not learned from."""
    capacity: Rows = 0
    """Real transitions to make room for; 0 takes what the iterations will collect."""
    model: ModelConfig = field(default_factory=ModelConfig)
    """The learned dynamics and its fit."""
    imagination: ImaginationConfig = field(default_factory=ImaginationConfig)
    """Virtual trajectories."""
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    """The policy and its update."""
    value: ValueConfig = field(default_factory=ValueConfig)
    """The value function and its update."""
    tail: TailConfig = field(default_factory=TailConfig)
    """The uncertainty past the end of a virtual trajectory."""
    returns: ReturnConfig = field(default_factory=ReturnConfig)
    """Units of rewards, advantages and uncertainty."""
    exploration: ExplorationConfig = field(default_factory=ExplorationConfig)
    """Exploration policies."""
    calibration: CalibrationConfig = field(default_factory=CalibrationConfig)
    """Correction of the uncertainty by real returns."""

    def __post_init__(self) -> None:
        require_ranges(self)
        require_imagination(self.imagination, self.returns)
        if self.tail.use and not self.returns.bootstrap:
            raise UsageError(
                "tail.use continues the uncertainty where V continues the return, and "
                "returns.bootstrap is off: set both or neither."
            )

        if self.corrects and not self.calibration.use:
            raise UsageError(
                "returns.recalibrate and returns.correlation = fitted take numbers "
                "from evaluations, and calibration.use is off: set it, or leave both."
            )
        if self.corrects and self.evaluation_episodes < LEAST_EPISODES:
            raise UsageError(
                "returns.recalibrate and returns.correlation = fitted need evaluations "
                f"of {LEAST_EPISODES} episodes or more, and evaluation_episodes is "
                f"{self.evaluation_episodes}: raise it."
            )
        changed = self.corrects or self.returns.correlation != "none"
        if changed and self.model.kind == "simulator":
            raise UsageError(
                "returns.correlation and returns.recalibrate say what is made of the "
                "members' disagreement, and model.kind = simulator has none: leave "
                "them."
            )

    @property
    def corrects(self) -> bool:
        """Whether the uncertainty that learning uses depends on real episodes."""
        return self.returns.recalibrate or self.returns.correlation == "fitted"

    def next_alpha(self, alpha: float, kl: SupportsFloat) -> float:
        """alpha for the next update, given this one's and the KL that came of it."""
        if self.minimum_kl is None:
            return alpha
        if float(kl) < self.minimum_kl:
            return max(alpha / ALPHA_FACTOR, ALPHA_FLOOR * self.alpha)
        if float(kl) > 2 * self.minimum_kl:
            return min(alpha * ALPHA_FACTOR, self.alpha)
        return alpha

    def require_full_minibatches(self, horizon: int) -> None:
        """Refuse minibatches that an imagined batch could not fill."""
        trajectories = self.imagination.trajectories
        if self.exploration.policies:
            trajectories = min(trajectories, self.exploration.trajectories)
        horizon = self.imagination.horizon(horizon)
        samples = trajectories * horizon
        largest = max(self.policy.minibatch, self.value.minibatch)
        if self.tail.use:
            largest = max(largest, self.tail.minibatch)
        if largest > samples:
            raise UsageError(
                f"A minibatch of {largest} is larger than an imagined batch of "
                f"{samples} samples ({trajectories} trajectories of {horizon} steps): "
                "lower the minibatches of policy, value and tail or imagine more "
                "trajectories."
            )
