"""The point mass of Appendix D, in two and three dimensions."""

import numpy as np
import numpy.typing as npt

from pombu.envs.config import require_bonus, require_noise
from pombu.envs.contract import PointContract
from pombu.envs.environment import Array64, TaskEnv
from pombu.envs.noise import Noise, NoiseKind

ACTION_BOUND = 0.1


class PointPhysics:
    """s' = s + a."""

    def __init__(self, contract: PointContract) -> None:
        self.contract = contract

    @property
    def noise(self) -> Noise:
        """The noise on observations."""
        return self.contract.noise

    def start(self, rng: np.random.Generator) -> Array64:
        """Uniform in the start square or cube."""
        bound = self.contract.start_range
        return rng.uniform(-bound, bound, self.contract.dimensions)

    def advance(self, state: Array64, action: Array64) -> Array64:
        """The state moved by the action."""
        return state + action

    advance_all = advance

    def observe(self, state: Array64) -> Array64:
        """The state itself."""
        return state

    def close(self) -> None:
        """Nothing to free."""


class PointEnv(TaskEnv):
    """A point that is rewarded for being near the origin."""

    def __init__(
        self,
        dimensions: int,
        observation_noise: float = 0.0,
        alive_bonus: float = 0.0,
        noise_kind: NoiseKind = "gaussian",
        render_mode: str | None = None,
    ) -> None:
        require_noise(observation_noise, noise_kind)
        require_bonus(alive_bonus)
        noise = Noise(observation_noise, noise_kind)
        contract = PointContract(dimensions, alive_bonus, noise)
        super().__init__(
            PointPhysics(contract),
            observation_dim=dimensions,
            action_bound=ACTION_BOUND,
            action_dim=dimensions,
            steps_per_second=10.0,
            render_mode=render_mode,
        )

    def render(self) -> npt.NDArray[np.uint8] | None:
        """The first two coordinates seen from above; nearer in depth is larger."""
        if self.render_mode is None:
            return None
        size, reach = 256, 5.0
        axis = np.linspace(-reach, reach, size)
        across, up = np.meshgrid(axis, -axis)
        picture = np.full((size, size, 3), 255, np.uint8)
        picture[np.minimum(abs(across), abs(up)) < reach / size] = 225
        picture[across**2 + up**2 < 0.15**2] = (60, 160, 80)
        depth = self.state[2] if len(self.state) > 2 else 0.0
        radius = 0.18 * np.exp(depth / reach)
        near = (across - self.state[0]) ** 2 + (up - self.state[1]) ** 2 < radius**2
        picture[near] = (40, 90, 200)
        return picture
