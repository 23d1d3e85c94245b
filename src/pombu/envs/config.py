"""How a user names an environment and its options."""

import math
from dataclasses import dataclass
from typing import Annotated, get_args

from pombu.envs.noise import Noise, NoiseKind
from pombu.errors import Amount, Finite, Range, Steps, UsageError, require_ranges


@dataclass(frozen=True)
class EnvConfig:
    """Which environment to learn in."""

    id: str = "pombu/HalfCheetah-v0"
    """A task of pombu (`HalfCheetah` is short for `pombu/HalfCheetah-v0`), any
    Gymnasium id, or `module:factory` where `factory()` returns an environment."""

    horizon: Steps | None = None
    """Steps after which an episode is cut off; None keeps the environment's limit."""

    observation_noise: Amount = 0.0
    """Size of the noise added to observations; rewards still come from the clean
    state."""

    alive_bonus: Finite | None = None
    """Constant added to each step's reward of a pombu task; None is the paper's formula
    (0). The published Ant and Walker2d numbers were made with 1."""

    observe_y: bool = True
    """Ant only: whether the sideways position is observed (28 entries, as in the paper)
    or left out (27 entries, as in the published code)."""

    noise_kind: NoiseKind = "gaussian"
    """`gaussian`: normal noise with the standard deviation `observation_noise` on every
    observation (the paper's text). `uniform`: noise between plus and minus
    `observation_noise`, and an episode's first observation is clean (published code).
    """

    history: Annotated[int, Range("[1, 1000]")] = 1
    """Observations that model and policy see: the present one and those before it,
    newest first. An episode begins with its first one repeated."""

    def __post_init__(self) -> None:
        require_ranges(self)
        require_noise(self.observation_noise, self.noise_kind)
        require_bonus(self.alive_bonus)

    @property
    def noise(self) -> Noise:
        """The noise on observations."""
        return Noise(self.observation_noise, self.noise_kind)


def require_noise(observation_noise: float, noise_kind: str = "gaussian") -> None:
    """Raise unless the noise has a size and a known kind."""
    if noise_kind not in get_args(NoiseKind):
        raise UsageError(
            f"noise_kind is {noise_kind!r}: give 'gaussian' (the paper's text) or "
            "'uniform' (its published code)."
        )
    if not (math.isfinite(observation_noise) and observation_noise >= 0):
        raise UsageError(
            f"observation_noise is {observation_noise}, but the size of noise is a "
            "finite number that is not negative: give 0 for no noise."
        )


def require_y(name: str, observe_y: bool) -> None:
    """Raise if a task other than Ant is to hide a sideways position."""
    if not observe_y and name != "Ant":
        raise UsageError(
            f"observe_y=False hides Ant's sideways position, and {name} observes none: "
            "leave the option out."
        )


def require_bonus(alive_bonus: float | None) -> None:
    """Raise unless the bonus is a finite number or left out."""
    if alive_bonus is not None and not math.isfinite(alive_bonus):
        raise UsageError(
            f"alive_bonus is {alive_bonus}, but it must be finite: give 0 for the "
            "paper's reward or 1 for the published numbers of Ant and Walker2d."
        )
