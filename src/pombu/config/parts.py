"""The parts that configs are made of, each explained field by field.

Defaults are the paper's HalfCheetah (H=200), completed from the published code where
the paper is silent. `pombu.presets` holds the values for every task.
"""

from dataclasses import dataclass
from typing import Literal

from pombu.errors import UsageError

Precision = Literal["float32", "bfloat16"]
Activation = Literal["relu", "silu"]
Normalisation = Literal["weight", "layer"]
Draw = Literal["trajectory", "batch"]
"""Who draws the member that gives the next state: each trajectory for itself, or the
whole batch, which leaves the other members uncomputed."""


class Growing:
    """A config whose real transitions are all kept, however many come."""

    capacity: int
    iterations: int
    trajectories: int

    def rows(self, horizon: int) -> int:
        """Real transitions to make room for."""
        return self.capacity or self.iterations * self.trajectories * horizon


@dataclass(frozen=True)
class ModelConfig:
    """The learned world and its fit."""

    kind: Literal["ensemble", "simulator"] = "ensemble"
    """`ensemble` learns; `simulator` imagines in the real environment itself, which
    tells the optimiser's errors from the model's."""
    members: int = 5
    """K, networks in the ensemble."""
    hidden: tuple[int, ...] = (512, 512)
    """Hidden layer sizes of each member."""
    activation: Activation = "relu"
    """What follows each hidden layer: `relu` (paper), or `silu`, which is smooth."""
    normalisation: Normalisation = "weight"
    """`weight` normalises each unit's weights (paper); `layer` instead brings each
    hidden layer's values to mean 0 and variance 1 before the activation, which bounds
    what a member says of states that it does not know."""
    reward: Literal["known", "learned"] = "known"
    """`known` uses the task's reward function; `learned` predicts the reward beside the
    state change, as is done where a task has no such function."""
    termination: Literal["known", "learned"] = "known"
    """`known` uses the task's termination function, and without one nothing ends;
    `learned` learns from real episodes that terminated where imagined ones do."""
    learning_rate: float = 2e-4
    """Adam's step size."""
    final_learning_rate: float | None = None
    """Adam's step size at the end of a whole fit, towards which it falls linearly in
    every fit; None keeps it (paper)."""
    batch_size: int = 1000
    """Rows per gradient step."""
    gradient_clip: float = 0.5
    """Largest global norm of a gradient (published code; the paper does not say)."""
    validation_fraction: float = 0.2
    """Share of each trajectory that a member holds out (the paper's 4-to-1 split)."""
    validation_rows: int = 20_000
    """Held-out rows looked at in each validation, at most."""
    validate_every: int = 5
    """Epochs between validations."""
    validate_every_steps: int | None = None
    """Gradient steps between validations, at most; None counts epochs alone (paper)."""
    patience: int = 25
    """Epochs without a lower validation loss after which a member stops."""
    max_epochs: int = 10_000
    """Epochs per fit, at most."""
    max_steps: int | None = None
    """Gradient steps per fit, at most; None leaves stopping to validation (paper)."""
    steps_per_new_row: float | None = None
    """Gradient steps of a fit per real transition that is new since the last one, but
    at least 200 and within the other bounds. To a member that starts afresh all are
    new. None does not count them (paper)."""
    reinitialise_every: int = 10
    """Iterations after which the members start afresh with a new split (published
    code); 0 always keeps the previous weights."""
    reinitialise_in_turn: bool = False
    """Whether members start afresh one after the other, spread evenly over these
    iterations, and keep their split; otherwise all at once (published code)."""
    precision: Precision = "float32"
    """Number format of the members' matrix products; sums are always float32."""
    fit_horizon: int = 1
    """Steps ahead over which a fit takes the error, through the member's own
    predictions; 1 looks one step ahead (paper). More helps where observations are
    noisy."""

    def __post_init__(self) -> None:
        at_least("model.members (K)", self.members, 1)
        for name in ("batch_size", "validation_rows", "validate_every", "max_epochs"):
            at_least(f"model.{name}", getattr(self, name), 1)
        at_least("model.fit_horizon", self.fit_horizon, 1)
        at_least("model.patience", self.patience, 0)
        for name in ("validate_every_steps", "max_steps"):
            if getattr(self, name) is not None:
                at_least(f"model.{name}", getattr(self, name), 1)
        if self.steps_per_new_row is not None:
            ratio = self.steps_per_new_row
            within("model.steps_per_new_row", ratio, "(0, infinity)", ratio > 0)
        fraction = self.validation_fraction
        within("model.validation_fraction", fraction, "(0, 1)", 0 < fraction < 1)


@dataclass(frozen=True)
class ImaginationConfig:
    """Virtual trajectories."""

    trajectories: int = 200
    """Virtual trajectories per update."""
    shards: int = 2
    """Independent parts into which an imagined batch is cut, so that as many cores can
    work on it; part of the random stream, hence of the result."""
    runaway: float = 1e5
    """A trajectory whose state leaves plus or minus this is masked and counted."""
    steps: int | None = None
    """Steps per virtual trajectory, at most; None takes the task's horizon (paper)."""
    real_starts: float = 0.0
    """Share of the virtual trajectories that begin in a stored real state, with the
    steps that its episode had left; the others begin where episodes do (paper: all)."""
    disagreement_stop: float | None = None
    """A virtual trajectory is cut off, with V beyond it, after a step about which the
    members disagree more than about this share of the real steps (1: about any of
    them); None lets it go on (paper)."""

    def horizon(self, task_horizon: int) -> int:
        """Steps per virtual trajectory in a task of this horizon."""
        return min(self.steps or task_horizon, task_horizon)


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
class PlainReturnConfig:
    """Discount, and units of rewards and advantages."""

    gamma: float = 0.99
    """Discount factor (published code; the paper's text is undiscounted)."""
    lam: float = 1.0
    """lambda of the advantage estimate; 1 is the paper's return minus value."""
    bootstrap: bool = False
    """Past the horizon expect V of the last state; otherwise nothing, as in the paper's
    finite-horizon returns."""
    reward_clip: float | None = 5.0
    """Raw rewards are cut to plus or minus this value (published code); None leaves
    them."""
    scale_rewards: bool = True
    """Divide rewards by the standard deviation of all real returns."""
    advantage_clip: float | None = 5.0
    """Advantages are cut to plus or minus this value before they are standardised."""
    standardise_advantages: bool = True
    """Give the advantages of a batch mean 0 and standard deviation 1."""


@dataclass(frozen=True)
class ReturnConfig(PlainReturnConfig):
    """The same with units of the uncertainty: together they give alpha and beta their
    meaning."""

    variance_clip: float | None = 5.0
    """The variance D is cut to this value (published code); None leaves it."""
    uncertainty_units: Literal["reward", "advantage"] = "reward"
    """`reward` leaves sqrt(D) in units of scaled reward (published code); `advantage`
    divides it by the same standard deviation as the advantages."""


@dataclass(frozen=True)
class ExplorationConfig:
    """Exploration policies, which collect all real data after the first iteration."""

    policies: int = 10
    """Exploration policies per iteration; 0 collects with the policy itself."""
    trajectories: int = 200
    """Virtual trajectories that each of them is trained on."""
    random_members: bool = True
    """Each exploration policy draws its next states with its own random weighting of
    the members (published code)."""
    centred: bool = False
    """Subtract from the bonus its mean over the trajectories at each step, so that it
    prefers what is more uncertain than usual; otherwise every action is rewarded for
    the uncertainty that all of them share (published code)."""


def at_least(name: str, value: float, least: float) -> None:
    """Refuse a value that is too small, or no number."""
    if not value >= least:
        raise UsageError(f"{name} is {value}; it must be at least {least}.")


def within(name: str, value: float, interval: str, holds: bool) -> None:
    """Refuse a value outside an interval."""
    if not holds:
        raise UsageError(f"{name} is {value}; it must lie in {interval}.")


def require_world(imagination: ImaginationConfig, returns: PlainReturnConfig) -> None:
    """Refuse what no model-based method can imagine with."""
    at_least("imagination.trajectories", imagination.trajectories, 1)
    at_least("imagination.shards", imagination.shards, 1)
    if imagination.trajectories % imagination.shards:
        raise UsageError(
            f"imagination.trajectories is {imagination.trajectories}, which "
            f"imagination.shards = {imagination.shards} does not divide: choose a "
            "multiple."
        )
    if imagination.steps is not None:
        at_least("imagination.steps", imagination.steps, 1)
    share = imagination.real_starts
    within("imagination.real_starts", share, "[0, 1]", 0 <= share <= 1)
    stop = imagination.disagreement_stop
    if stop is not None:
        within("imagination.disagreement_stop", stop, "(0, 1]", 0 < stop <= 1)
        if not returns.bootstrap:
            raise UsageError(
                "imagination.disagreement_stop cuts trajectories off where V must go "
                "on, and returns.bootstrap does not ask it: set returns.bootstrap, or "
                "leave the stop out."
            )
    gamma, lam = returns.gamma, returns.lam
    within("returns.gamma", gamma, "(0, 1]", 0 < gamma <= 1)
    within("returns.lam", lam, "[0, 1]", 0 <= lam <= 1)


def require_baseline(
    name: str,
    baseline: BaselineConfig,
    returns: PlainReturnConfig,
) -> None:
    """Refuse to continue branches with a baseline that says nothing of their end."""
    if returns.bootstrap and baseline.kind == "linear":
        raise UsageError(
            f"returns.bootstrap asks for a value past the horizon, and {name}'s linear "
            "baseline has none: set baseline.kind to network, or leave it out."
        )
