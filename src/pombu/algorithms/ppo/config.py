"""The configuration of PPO."""

from dataclasses import dataclass, field
from typing import Literal

from pombu.envs import EnvConfig
from pombu.errors import UsageError, at_least, within


@dataclass(frozen=True)
class PPOConfig:
    """Proximal policy optimisation (Schulman et al., 2017), by Stable-Baselines3.

    Defaults are those of the paper's own baseline.
    """

    env: EnvConfig = field(default_factory=EnvConfig)
    """The environment."""
    trajectories: int = 10
    """Real trajectories per iteration: the batch of an update."""
    iterations: int = 100
    """Iterations of whole trajectories over which the learning rate falls; what counts
    is their real steps."""
    evaluation_episodes: int = 20
    """Real episodes per evaluation; they are not learned from."""
    hidden: tuple[int, ...] = (64, 64)
    """Hidden layer sizes of policy and value function, which share none."""
    activation: Literal["tanh", "relu"] = "tanh"
    """What comes after each hidden layer."""
    orthogonal: bool = True
    """Start from orthogonal layers with a tiny policy output."""
    log_std: float = 0.0
    """Logarithm of the standard deviation to start from."""
    learning_rate: float = 3e-4
    """Adam's step size in the first iteration."""
    final_learning_rate: float = 0.0
    """Adam's step size after the steps of all iterations; falls linearly in between."""
    epochs: int = 10
    """Passes over the batch per iteration."""
    minibatch: int = 200
    """Samples per gradient step."""
    clip: float = 0.1
    """epsilon of the clipped ratio."""
    gamma: float = 0.99
    """Discount factor."""
    lam: float = 0.95
    """lambda of the advantage estimate."""
    entropy_weight: float = 0.0
    """Weight of the entropy bonus."""
    value_weight: float = 0.5
    """Weight of the value function's squared error."""
    gradient_clip: float = 1e9
    """Largest global norm of a gradient; the default lets every gradient pass."""
    normalise_observations: bool = True
    """Shift and scale observations by the mean and deviation of those before."""
    scale_rewards: bool = False
    """Divide rewards by the standard deviation of the real returns so far."""

    def __post_init__(self) -> None:
        for name in ("trajectories", "iterations", "evaluation_episodes", "epochs"):
            at_least(name, getattr(self, name), 1)
        at_least("minibatch", self.minibatch, 2)
        within("gamma", self.gamma, "(0, 1]", 0 < self.gamma <= 1)
        within("lam", self.lam, "[0, 1]", 0 <= self.lam <= 1)
        within("clip", self.clip, "(0, infinity)", self.clip > 0)

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
