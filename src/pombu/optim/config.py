"""Configs of the policy, the value functions and their updates."""

from dataclasses import dataclass
from typing import Annotated, Literal

from pombu.errors import (
    Amount,
    Batch,
    Count,
    InnerShare,
    LogStd,
    Positive,
    Range,
    Rate,
    Share,
    Sizes,
    Whole,
    require_ranges,
)


@dataclass(frozen=True)
class PolicyConfig:
    """The Gaussian policy and its update."""

    hidden: Sizes = (64, 64)
    """Hidden layer sizes (tanh)."""
    learning_rate: Rate = 1e-4
    """Adam's step size in the first iteration."""
    final_learning_rate: Rate = 1e-5
    """Adam's step size when all iterations are done; falls linearly in between."""
    epochs: Count = 10
    """Passes over the imagined batch per update."""
    minibatch: Batch = 500
    """Samples per gradient step."""
    gradient_clip: Positive = 0.5
    """Largest global norm of a gradient (published code)."""
    clip: Positive = 0.15
    """epsilon of the clipped ratio."""
    initial_log_std: LogStd = 0.0
    """Log of the standard deviation of an untrained policy's actions, in policy space
    (published code: 0)."""
    reset_std_iterations: Whole = 5
    """In the first iterations the log-std is set back to its first value before data is
    collected (published code)."""
    minimum_log_std: LogStd = -10.0
    """The log-std is kept at or above this value."""

    def __post_init__(self) -> None:
        require_ranges(self, "policy")

    def rate(self, done: float) -> float:
        """The step size when a share `done` of the iterations lies behind."""
        first, last = self.learning_rate, self.final_learning_rate
        return first + (last - first) * done


@dataclass(frozen=True)
class CriticConfig:
    """A value function of the state, and its update."""

    hidden: Sizes = (64, 64)
    """Hidden layer sizes (tanh)."""
    learning_rate: Rate = 1e-4
    """Adam's step size in the first iteration."""
    final_learning_rate: Rate = 1e-5
    """Adam's step size when all iterations are done; falls linearly in between."""
    epochs: Count = 10
    """Passes over the imagined batch per update."""
    minibatch: Batch = 500
    """Samples per gradient step."""
    gradient_clip: Positive = 0.5
    """Largest global norm of a gradient (published code)."""

    def __post_init__(self) -> None:
        require_ranges(self, "value")

    def rate(self, done: float) -> float:
        """The step size when a share `done` of the iterations lies behind."""
        first, last = self.learning_rate, self.final_learning_rate
        return first + (last - first) * done


@dataclass(frozen=True)
class ValueConfig(CriticConfig):
    """The value function and its update."""

    clock: bool = False
    """Whether V, and U_psi with it, also see how many steps of the episode are left. V
    then is that of the finite horizon, and nothing is expected past it; otherwise it is
    a function of the state alone (paper)."""


@dataclass(frozen=True)
class BaselineConfig(CriticConfig):
    """What advantages are measured against in methods that improve by TRPO."""

    kind: Literal["linear", "network"] = "linear"
    """`linear` fits a function of state and time to every batch (published code);
    `network` trains V_phi, which also continues branches past their end."""

    def __post_init__(self) -> None:
        require_ranges(self, "baseline")


@dataclass(frozen=True)
class TailConfig(CriticConfig):
    """U_psi, the uncertainty past the end of a virtual trajectory, and its update."""

    use: bool = False
    """Whether D goes on with U_psi where V continues the return; otherwise D is 0 there
    (paper, whose trajectories are whole episodes)."""
    epochs: Count = 2
    """Passes over the imagined batch per update."""

    def __post_init__(self) -> None:
        require_ranges(self, "tail")


@dataclass(frozen=True)
class TrustRegionConfig:
    """How far and how carefully one TRPO step goes."""

    max_kl: Positive = 0.01
    """Mean KL divergence from the old policy to which a full step is scaled."""
    kl_tolerance: Positive = 1.0
    """A step is accepted up to this many times `max_kl`."""
    conjugate_gradients: Annotated[int, Range("[1, 1000]")] = 10
    """Iterations of the conjugate gradient method."""
    damping: Amount = 0.1
    """Multiple of the identity that is added to the Fisher matrix."""
    backtrack: InnerShare = 0.5
    """A step that is not accepted is shortened by this factor."""
    backtracks: Annotated[int, Range("[1, 1000]")] = 10
    """Lengths that are tried; when none is accepted the policy stays as it was."""
    accept_ratio: Share = 0.1
    """Least gain of an accepted step, as a share of what the gradient promises."""

    def __post_init__(self) -> None:
        require_ranges(self, "trust_region")


@dataclass(frozen=True)
class TRPOPolicyConfig:
    """The Gaussian policy of methods that improve it by TRPO."""

    hidden: Sizes = (32, 32)
    """Hidden layer sizes (tanh)."""
    reset_std: bool = False
    """Set the log-std back to its first value before the updates of each iteration."""
    initial_log_std: LogStd = 0.0
    """Log standard deviation of the first policy."""

    def __post_init__(self) -> None:
        require_ranges(self, "policy")
