"""How a user names an environment and its options, and the noise on observations."""

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from pombu.errors import Amount, Finite, Range, Steps, UsageError, require_ranges

NoiseKind = Literal["gaussian", "uniform"]
"""`gaussian`: normal with the given standard deviation on every observation, the first
included (the paper's text). `uniform`: between plus and minus the given number, and the
first observation of an episode is clean (the published code)."""


@dataclass(frozen=True)
class Noise:
    """How much noise there is on observations, and of which kind."""

    size: float = 0.0
    kind: NoiseKind = "gaussian"

    @property
    def on_first(self) -> bool:
        """Whether the first observation of an episode has it too."""
        return self.size > 0 and self.kind == "gaussian"

    def draw(
        self, rng: np.random.Generator, shape: tuple[int, ...]
    ) -> npt.NDArray[np.float64]:
        """Independent noise of this shape."""
        if self.kind == "uniform":
            return self.size * rng.uniform(-1.0, 1.0, shape)
        return self.size * rng.standard_normal(shape)

    def draw_episode(
        self, rng: np.random.Generator, steps: int, dim: int
    ) -> npt.NDArray[np.float64]:
        """[steps + 1, dim] what an episode's observations have, drawn in their order.

        Equal to drawing them one by one.
        """
        if self.on_first:
            return self.draw(rng, (steps + 1, dim))
        return np.concatenate([np.zeros((1, dim)), self.draw(rng, (steps, dim))])


NO_NOISE = Noise()
"""Clean observations."""


@dataclass(frozen=True)
class EnvConfig:
    """Which environment to learn in.

    Every field but the id is an option. Flags of `pombu train` and `pombu check-env`,
    keys of study files, names of run folders and results pages follow from the fields:
    a new option is a field here, the place where it acts, and its test.
    """

    id: str = "pombu/HalfCheetah-v0"
    """A task of pombu (`HalfCheetah` is short for `pombu/HalfCheetah-v0`), any
    Gymnasium id, or `module:factory` where `factory()` returns an environment."""

    horizon: Steps | None = field(default=None, metadata={"short": "h"})
    """Steps after which an episode is cut off; None keeps the environment's limit."""

    observation_noise: Amount = field(default=0.0, metadata={"short": "noise"})
    """Size of the noise added to observations; rewards still come from the clean
    state."""

    alive_bonus: Finite | None = field(default=None, metadata={"short": "alive"})
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
    def options(self) -> dict[str, Any]:
        """Every option by its name, and its value; the id is none."""
        named = {one.name: getattr(self, one.name) for one in dataclasses.fields(self)}
        del named["id"]
        return named

    @property
    def changed(self) -> dict[str, Any]:
        """The options whose values are not the default ones."""
        usual = EnvConfig().options
        return {k: value for k, value in self.options.items() if value != usual[k]}

    @property
    def labels(self) -> list[str]:
        """One word per changed option, for names of folders: `h1000`, `noise0.1`."""
        fields = {one.name: one for one in dataclasses.fields(self)}
        words = []
        for name, value in self.changed.items():
            short = fields[name].metadata.get("short", name)
            is_number = type(value) in (int, float)
            words.append(f"{short}{value:g}" if is_number else f"{short}{value}")
        return words

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
