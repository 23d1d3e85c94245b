"""The configuration of STEVE and STEVE-U."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from pombu.dynamics.config import Precision
from pombu.envs import EnvConfig
from pombu.errors import (
    Amount,
    Batch,
    Count,
    Episodes,
    Iterations,
    Members,
    PositiveShare,
    Range,
    Rate,
    Share,
    Sizes,
    UsageError,
    Whole,
    require_ranges,
)


@dataclass(frozen=True)
class ActorCriticConfig:
    """The deterministic actor and the ensemble of critics."""

    members: Members = 4
    """Critics."""
    actor_hidden: Sizes = (128, 128, 128)
    """Hidden layer sizes of the actor (ReLU; tanh after its output)."""
    critic_hidden: Sizes = (128, 128, 128)
    """Hidden layer sizes of each critic (ReLU)."""
    learning_rate: Rate = 3e-4
    """Adam's step size."""
    saturation_weight: Amount = 0.001
    """Weight of the mean square of the actor's outputs before tanh."""

    def __post_init__(self) -> None:
        require_ranges(self, "actor_critic")


@dataclass(frozen=True)
class ExpansionModelConfig:
    """Ensembles of transition, reward and termination networks."""

    members: Members = 4
    """Networks in each of the three ensembles."""
    hidden: Sizes = (512, 512, 512, 512, 512, 512, 512)
    """Hidden layer sizes of transition networks (ReLU)."""
    reward_hidden: Sizes = (128, 128, 128)
    """Hidden layer sizes of reward and termination networks (ReLU)."""
    learning_rate: Rate = 3e-4
    """Adam's step size."""
    weight_decay: Amount = 1e-4
    """Half of this times the squared norm of all parameters is added to the loss."""
    pretraining: Whole = 10_000
    """Gradient steps of the models before the first of actor and critics."""
    precision: Precision = "float32"
    """Number format of matrix products; sums are always float32."""

    def __post_init__(self) -> None:
        require_ranges(self, "model")


@dataclass(frozen=True)
class STEVEConfig:
    """Stochastic Ensemble Value Expansion (Buckman et al., 2018), synchronous.

    Defaults are the published ones.
    """

    env: EnvConfig = field(default_factory=EnvConfig)
    """The environment."""
    weighting: Literal["samples", "bellman"] = "samples"
    """Where the variance of each horizon's target comes from, by whose inverse horizons
    are weighted: `samples` is STEVE, the variance of the target's samples; `bellman` is
    STEVE-U, Algorithm 1's local uncertainties along the way plus the variance of the
    critics at its end."""
    expansion: Annotated[int, Range("[0, 1000]")] = 3
    """H, steps by which targets are expanded in the model; 0 is DDPG with an ensemble
    of critics."""
    trajectories: Episodes = 5
    """Real trajectories per iteration, collected side by side."""
    iterations: Iterations = 200
    """Iterations that are planned."""
    evaluation_episodes: Episodes = 20
    """Real episodes per evaluation; they are not learned from."""
    updates_per_step: Annotated[float, Range("[0, 1e4]")] = 4.0
    """Gradient steps per real step, of the models as well as of actor and critics."""
    learning_starts: Whole = 10_000
    """Real steps with random actions, before the first gradient step."""
    batch_size: Batch = 512
    """Samples per gradient step."""
    capacity: Annotated[int, Range("[1, 1e8]")] = 1_000_000
    """Most recent real transitions that are learned from."""
    gamma: PositiveShare = 0.99
    """Discount factor."""
    target_period: Count = 500
    """Gradient steps after which the critics and models that give targets are replaced
    by the present ones."""
    explore_chance: Share = 0.05
    """Probability with which an entry of an action is drawn anew around the actor's (in
    the published code a misspelt name makes it 0)."""
    model: ExpansionModelConfig = field(default_factory=ExpansionModelConfig)
    """The learned dynamics."""
    actor_critic: ActorCriticConfig = field(default_factory=ActorCriticConfig)
    """Actor and critics."""

    def __post_init__(self) -> None:
        require_ranges(self)
        for name, members in (
            ("model.members", self.model.members),
            ("actor_critic.members", self.actor_critic.members),
        ):
            if self.batch_size % members:
                raise UsageError(
                    f"batch_size is {self.batch_size}, no multiple of {name} = "
                    f"{members}: every sample trains one member; choose a multiple."
                )

    def rows(self, horizon: int) -> int:
        """Real transitions to make room for."""
        planned = self.iterations * self.trajectories * horizon
        return min(self.capacity, planned)
