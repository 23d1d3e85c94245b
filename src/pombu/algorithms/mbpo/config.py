"""The configuration of MBPO."""

from dataclasses import dataclass, field
from typing import Annotated

from pombu.algorithms.config import ActorCriticConfig, Growing
from pombu.dynamics.config import HomoscedasticModelConfig
from pombu.envs import EnvConfig
from pombu.errors import (
    Batch,
    Count,
    Episodes,
    InnerShare,
    Iterations,
    Members,
    Positive,
    PositiveShare,
    Range,
    Rows,
    Share,
    Steps,
    UsageError,
    Whole,
    require_ranges,
)


@dataclass(frozen=True)
class BranchConfig:
    """Branches: imagined steps from stored real states, and how long they are.

    Their length grows linearly from `first_steps` to `last_steps` between two numbers
    of real steps.
    """

    starts: Batch = 100_000
    """Stored real states that branches start from at a time."""
    every: Count = 10_000
    """Updates between two times."""
    kept: Count = 4
    """Latest times whose imagined steps are learned from."""
    first_steps: Steps = 1
    """Length until `grows_from`."""
    last_steps: Steps = 1
    """Length from `grows_until` on."""
    grows_from: Whole = 20_000
    """Real steps at which branches begin to grow."""
    grows_until: Whole = 100_000
    """Real steps at which they stop growing."""
    disagreement_stop: PositiveShare | None = None
    """A branch stops, and its last step is dropped, where members disagree more than
    about this share of the real steps (1: about any of them); None never stops one."""

    def __post_init__(self) -> None:
        require_ranges(self, "branch")
        if self.last_steps < self.first_steps:
            raise UsageError(
                f"branch.last_steps is {self.last_steps}, less than branch.first_steps "
                f"= {self.first_steps}: branches do not get shorter; raise it."
            )
        if self.grows_until <= self.grows_from:
            raise UsageError(
                f"branch.grows_until is {self.grows_until}, not after "
                f"branch.grows_from = {self.grows_from}: raise it."
            )

    def length(self, real_steps: int) -> int:
        """Steps of a branch after so many real ones."""
        share = (real_steps - self.grows_from) / (self.grows_until - self.grows_from)
        grown = share * (self.last_steps - self.first_steps)
        steps = int(self.first_steps + grown)
        return min(max(steps, self.first_steps), self.last_steps)


def _twin_critics() -> ActorCriticConfig:
    return ActorCriticConfig(
        critics=2,
        hidden=(256, 256),
        temperature=1.0,
        keep_moments=True,
        bound_rate=0.0,
    )


def _published_members() -> HomoscedasticModelConfig:
    return HomoscedasticModelConfig(
        members=7, hidden=(200, 200, 200, 200), validation_fraction=0.2
    )


@dataclass(frozen=True)
class MBPOConfig(Growing):
    """Model-based policy optimisation (Janner et al., 2019).

    Defaults are the published ones for HalfCheetah, but for the members, whose noise is
    the same in every state, and the fit, which is bounded: both are DHMBPO's, so that
    what differs between the two is how they improve.
    """

    env: EnvConfig = field(default_factory=EnvConfig)
    """The environment."""
    trajectories: Episodes = 1
    """Real trajectories per iteration, collected side by side."""
    least_steps: Whole = 0
    """Real steps per iteration, at least: where episodes end early, more rounds of
    trajectories are collected; 0 collects a single round."""
    iterations: Iterations = 200
    """Iterations that are planned."""
    evaluation_episodes: Episodes = 10
    """Real episodes per evaluation; they are not learned from."""
    capacity: Rows = 0
    """Real transitions to make room for; 0 takes what the iterations will collect."""
    learning_starts: Whole = 5000
    """Real steps with random actions, before the first fit."""
    updates_per_step: Annotated[float, Range("[0, 100]")] = 40.0
    """Updates of actor and critics per real step."""
    batch_size: Batch = 256
    """Transitions per update."""
    real_share: Share = 0.05
    """Share of a batch that is real."""
    gamma: InnerShare = 0.99
    """Discount factor."""
    elites: Members = 5
    """Members that branches use: those with the least error on what they held out."""
    runaway: Positive = 1e5
    """A branch ends where an entry of its state is further than this many standard
    deviations of the real ones from their mean; its last step is dropped."""
    model: HomoscedasticModelConfig = field(default_factory=_published_members)
    """The learned dynamics and its fit."""
    branch: BranchConfig = field(default_factory=BranchConfig)
    """Branches of imagined steps."""
    actor_critic: ActorCriticConfig = field(default_factory=_twin_critics)
    """Actor, critics and temperature. With `bound_rate` 0 the critics give Q itself,
    not in units of a range (published)."""

    def __post_init__(self) -> None:
        require_ranges(self)
        if self.elites > self.model.members:
            raise UsageError(
                f"elites is {self.elites}, and there are only model.members = "
                f"{self.model.members} to choose from: lower it."
            )
        if self.branch.starts % self.elites:
            raise UsageError(
                f"branch.starts is {self.branch.starts}, no multiple of elites = "
                f"{self.elites}: every elite moves a part of the same size; choose a "
                "multiple."
            )

    @property
    def real_rows(self) -> int:
        """Real transitions of a batch."""
        return round(self.real_share * self.batch_size)
