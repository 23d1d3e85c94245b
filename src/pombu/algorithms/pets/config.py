"""The configuration of PETS and PETS-U."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from pombu.algorithms.config import Growing
from pombu.dynamics.config import GaussianModelConfig
from pombu.envs import EnvConfig
from pombu.errors import (
    Amount,
    Batch,
    Count,
    Episodes,
    Evaluations,
    Iterations,
    Positive,
    PositiveShare,
    Range,
    Rows,
    Steps,
    UsageError,
    require_ranges,
)
from pombu.optim.config import CriticConfig

Propagation = Literal["ts1", "tsinf", "mean"]
"""How imagined particles move: a fresh member at every step, the same member all along,
or one particle along the mean of all members."""


@dataclass(frozen=True)
class PlannerConfig:
    """How the best action sequence is sought at every real step."""

    kind: Literal["cem", "random"] = "cem"
    """The cross-entropy method, or the best of as many random sequences."""
    horizon: Steps = 30
    """Steps that are planned ahead."""
    population: Batch = 500
    """Sequences that are compared in each iteration (2500 for random shooting in the
    paper)."""
    elites: Batch = 50
    """Best sequences, to which the next iteration's distribution is fitted."""
    iterations: Count = 5
    """Iterations of the cross-entropy method, at most."""
    smoothing: Annotated[float, Range("[0, 1)")] = 0.1
    """Share of the previous mean and variance that each iteration keeps."""
    initial_variance: Amount = 0.25
    """Variance of the first iteration's actions, in policy space."""
    least_variance: Amount = 0.001
    """When no action's variance is above this, iterations stop."""
    warm_start: bool = True
    """Begin with the previous step's plan, moved on by one; otherwise in the middle."""
    propagation: Propagation = "tsinf"
    """How imagined particles move."""
    particles: Annotated[int, Range("[1, 1e5]")] = 20
    """Particles per sequence, a multiple of the members; `mean` has a single one."""

    def __post_init__(self) -> None:
        require_ranges(self, "planner")
        if self.elites > self.population:
            raise UsageError(
                f"planner.elites is {self.elites}, more than planner.population = "
                f"{self.population}: lower it."
            )


@dataclass(frozen=True)
class PETSConfig(Growing):
    """Probabilistic Ensembles with Trajectory Sampling (Chua et al., 2018).

    Defaults are the published ones. With kappa above 0 it is PETS-U, which avoids
    sequences whose return the ensemble is uncertain of.
    """

    env: EnvConfig = field(default_factory=EnvConfig)
    """The environment."""
    kappa: Amount = 0.0
    """How much of sqrt(U), the uncertainty of a sequence's return by Algorithm 1, is
    taken off its mean return when sequences are ranked; 0 is PETS."""
    trajectories: Episodes = 1
    """Real trajectories per iteration, planned side by side; those of the first
    iteration take random actions."""
    iterations: Iterations = 200
    """Iterations that are planned."""
    evaluation_episodes: Evaluations = 0
    """Real episodes per evaluation, which are not learned from; 0 reports the collected
    ones instead, as the paper does, because planning is what costs time."""
    capacity: Rows = 0
    """Real transitions to make room for; 0 takes what the iterations will collect."""
    gamma: PositiveShare = 1.0
    """Discount of imagined rewards; 1 is the paper's sum."""
    runaway: Positive = 1e5
    """A sequence ranks last when it leads a number of the state further than this many
    standard deviations from the mean of the real observations."""
    model: GaussianModelConfig = field(default_factory=GaussianModelConfig)
    """The learned dynamics and its fit."""
    planner: PlannerConfig = field(default_factory=PlannerConfig)
    """The search for actions."""
    value: CriticConfig = field(
        default_factory=lambda: CriticConfig(
            learning_rate=1e-3, final_learning_rate=1e-4, epochs=5, minibatch=250
        )
    )
    """V of Algorithm 1, learned from what real trajectories earned within the planner's
    horizon."""
    value_samples: Batch = 5000
    """Real steps that V learns from in each iteration."""

    def __post_init__(self) -> None:
        require_ranges(self)
        particles, members = self.planner.particles, self.model.members
        if self.planner.propagation != "mean" and particles % members:
            raise UsageError(
                f"planner.particles is {particles}, no multiple of model.members = "
                f"{members}: every member moves as many particles; choose a multiple."
            )
        if self.value.minibatch > self.value_samples:
            raise UsageError(
                f"value.minibatch is {self.value.minibatch}, larger than value_samples "
                f"= {self.value_samples}: lower it."
            )
