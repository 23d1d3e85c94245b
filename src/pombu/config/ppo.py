"""The configuration of PPO."""

from dataclasses import dataclass, field
from typing import Literal

from pombu.config.parts import at_least, within
from pombu.envs import EnvConfig


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
    """Iterations over which the learning rate falls."""
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
    """Adam's step size when all iterations are done; falls linearly in between."""
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
    """Divide rewards by the standard deviation of the real returns before."""

    def __post_init__(self) -> None:
        for name in ("trajectories", "iterations", "evaluation_episodes", "epochs"):
            at_least(name, getattr(self, name), 1)
        at_least("minibatch", self.minibatch, 2)
        within("gamma", self.gamma, "(0, 1]", 0 < self.gamma <= 1)
        within("lam", self.lam, "[0, 1]", 0 <= self.lam <= 1)
        within("clip", self.clip, "(0, infinity)", self.clip > 0)
