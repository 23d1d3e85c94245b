"""Configs of the policy, the value functions and their updates."""

from dataclasses import dataclass
from typing import Literal

from pombu.errors import at_least, within


@dataclass(frozen=True)
class PolicyConfig:
    """The Gaussian policy and its update."""

    hidden: tuple[int, ...] = (64, 64)
    """Hidden layer sizes (tanh)."""
    learning_rate: float = 1e-4
    """Adam's step size in the first iteration."""
    final_learning_rate: float = 1e-5
    """Adam's step size when all iterations are done; falls linearly in between."""
    epochs: int = 10
    """Passes over the imagined batch per update."""
    minibatch: int = 500
    """Samples per gradient step."""
    gradient_clip: float = 0.5
    """Largest global norm of a gradient (published code)."""
    clip: float = 0.15
    """epsilon of the clipped ratio."""
    initial_log_std: float = 0.0
    """Log of the standard deviation of an untrained policy's actions, in policy space
    (published code: 0)."""
    reset_std_iterations: int = 5
    """In the first iterations the log-std is set back to its first value before data is
    collected (published code)."""
    minimum_log_std: float = -10.0
    """The log-std is kept at or above this value."""

    def __post_init__(self) -> None:
        at_least("policy.epochs", self.epochs, 1)
        at_least("policy.minibatch", self.minibatch, 1)

    def rate(self, done: float) -> float:
        """The step size when a share `done` of the iterations lies behind."""
        first, last = self.learning_rate, self.final_learning_rate
        return first + (last - first) * done


@dataclass(frozen=True)
class ValueConfig:
    """The value function and its update."""

    hidden: tuple[int, ...] = (64, 64)
    """Hidden layer sizes (tanh)."""
    learning_rate: float = 1e-4
    """Adam's step size in the first iteration."""
    final_learning_rate: float = 1e-5
    """Adam's step size when all iterations are done; falls linearly in between."""
    epochs: int = 10
    """Passes over the imagined batch per update."""
    minibatch: int = 500
    """Samples per gradient step."""
    gradient_clip: float = 0.5
    """Largest global norm of a gradient (published code)."""

    def __post_init__(self) -> None:
        at_least("value.epochs", self.epochs, 1)
        at_least("value.minibatch", self.minibatch, 1)

    def rate(self, done: float) -> float:
        """The step size when a share `done` of the iterations lies behind."""
        first, last = self.learning_rate, self.final_learning_rate
        return first + (last - first) * done


@dataclass(frozen=True)
class BaselineConfig(ValueConfig):
    """What advantages are measured against in methods that improve by TRPO."""

    kind: Literal["linear", "network"] = "linear"
    """`linear` fits a function of state and time to every batch (published code);
    `network` trains V_phi, which also continues branches past their end."""


@dataclass(frozen=True)
class TailConfig(ValueConfig):
    """U_psi, the uncertainty past the end of a virtual trajectory, and its update."""

    use: bool = False
    """Whether D goes on with U_psi where V continues the return; otherwise D is 0 there
    (paper, whose trajectories are whole episodes)."""
    epochs: int = 2
    """Passes over the imagined batch per update."""

    def __post_init__(self) -> None:
        at_least("tail.epochs", self.epochs, 1)
        at_least("tail.minibatch", self.minibatch, 1)


@dataclass(frozen=True)
class TrustRegionConfig:
    """How far and how carefully one TRPO step goes."""

    max_kl: float = 0.01
    """Mean KL divergence from the old policy to which a full step is scaled."""
    kl_tolerance: float = 1.0
    """A step is accepted up to this many times `max_kl`."""
    conjugate_gradients: int = 10
    """Iterations of the conjugate gradient method."""
    damping: float = 0.1
    """Multiple of the identity that is added to the Fisher matrix."""
    backtrack: float = 0.5
    """A step that is not accepted is shortened by this factor."""
    backtracks: int = 10
    """Lengths that are tried; when none is accepted the policy stays as it was."""
    accept_ratio: float = 0.1
    """Least gain of an accepted step, as a share of what the gradient promises."""

    def __post_init__(self) -> None:
        at_least("trust_region.conjugate_gradients", self.conjugate_gradients, 1)
        at_least("trust_region.damping", self.damping, 0)
        at_least("trust_region.backtracks", self.backtracks, 1)
        at_least("trust_region.accept_ratio", self.accept_ratio, 0)
        for name in ("max_kl", "kl_tolerance"):
            value = getattr(self, name)
            within(f"trust_region.{name}", value, "(0, infinity)", value > 0)
        factor = self.backtrack
        within("trust_region.backtrack", factor, "(0, 1)", 0 < factor < 1)


@dataclass(frozen=True)
class TRPOPolicyConfig:
    """The Gaussian policy of methods that improve it by TRPO."""

    hidden: tuple[int, ...] = (32, 32)
    """Hidden layer sizes (tanh)."""
    reset_std: bool = False
    """Set the log-std back to its first value before the updates of each iteration."""
    initial_log_std: float = 0.0
    """Log standard deviation of the first policy."""
