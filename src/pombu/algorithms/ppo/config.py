"""The configuration of PPO."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from pombu.envs import EnvConfig
from pombu.errors import (
    Amount,
    Count,
    Episodes,
    Iterations,
    LogStd,
    Positive,
    PositiveShare,
    Range,
    Rate,
    Share,
    Sizes,
    UsageError,
    require_ranges,
)


@dataclass(frozen=True)
class PPOConfig:
    """Proximal policy optimisation (Schulman et al., 2017), by sbx.

    Defaults are those of the paper's own baseline.
    """

    env: EnvConfig = field(default_factory=EnvConfig)
    """The environment."""
    trajectories: Episodes = 10
    """Real trajectories per iteration: the batch of an update."""
    iterations: Iterations = 100
    """Iterations of whole trajectories over which the learning rate falls; what counts
    is their real steps."""
    evaluation_episodes: Episodes = 20
    """Real episodes per evaluation; they are not learned from."""
    hidden: Sizes = (64, 64)
    """Hidden layer sizes of policy and value function, which share none."""
    activation: Literal["tanh", "relu"] = "tanh"
    """What comes after each hidden layer."""
    orthogonal: bool = True
    """Start from a tiny, orthogonal output layer of the policy."""
    log_std: LogStd = 0.0
    """Logarithm of the standard deviation to start from."""
    learning_rate: Rate = 3e-4
    """Adam's step size in the first iteration."""
    final_learning_rate: Rate = 0.0
    """Adam's step size after the steps of all iterations; falls linearly in between."""
    epochs: Count = 10
    """Passes over the batch per iteration."""
    minibatch: Annotated[int, Range("[2, 1e7]")] = 200
    """Samples per gradient step."""
    clip: Positive = 0.1
    """epsilon of the clipped ratio."""
    gamma: PositiveShare = 0.99
    """Discount factor."""
    lam: Share = 0.95
    """lambda of the advantage estimate."""
    entropy_weight: Amount = 0.0
    """Weight of the entropy bonus."""
    value_weight: Amount = 0.5
    """Weight of the value function's squared error."""
    gradient_clip: Positive = 1e9
    """Largest global norm of a gradient; the default lets every gradient pass."""
    normalise_observations: bool = True
    """Shift and scale observations by the mean and deviation of those before."""
    scale_rewards: bool = False
    """Divide rewards by the standard deviation of the real returns so far."""

    def __post_init__(self) -> None:
        require_ranges(self)

    def planned_steps(self, horizon: int) -> int:
        """Real steps over which the learning rate falls."""
        return self.iterations * self.trajectories * horizon

    def rate(self, real_steps: int, horizon: int) -> float:
        """Adam's step size after so many real steps."""
        done = min(real_steps / self.planned_steps(horizon), 1.0)
        first, last = self.learning_rate, self.final_learning_rate
        return first + (last - first) * done

    def iterations_for(self, total_steps: int, horizon: int) -> int:
        """Iterations of whole trajectories that take so many real steps."""
        return -(-total_steps // (self.trajectories * horizon))

    def require_rate(self, total_steps: int, horizon: int) -> None:
        """Refuse real steps of which the last would be taken with a rate of 0."""
        planned = self.planned_steps(horizon)
        if total_steps > planned and self.final_learning_rate == 0:
            raise UsageError(
                f"PPO's learning rate falls to 0 within {planned} real steps, and "
                f"{total_steps} are asked for: set iterations to "
                f"{self.iterations_for(total_steps, horizon)}, or final_learning_rate "
                "above 0."
            )
