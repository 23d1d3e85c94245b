"""The trust region that ME-TRPO, SLBO and MB-MPO step in, and its policy."""

from dataclasses import dataclass

from pombu.config.parts import at_least, within


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
