"""Configs of learned dynamics, of imagination in them, and of returns.

Defaults are the paper's HalfCheetah (H=200), completed from the published code where
the paper is silent.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

from pombu.errors import (
    Amount,
    Batch,
    Count,
    InnerShare,
    Members,
    Positive,
    PositiveShare,
    Range,
    Rate,
    Share,
    Sizes,
    Steps,
    UsageError,
    Whole,
    require_ranges,
)

Precision = Literal["float32", "bfloat16"]

Activation = Literal["relu", "silu"]

Normalisation = Literal["weight", "layer"]

Draw = Literal["trajectory", "batch"]
"""Who draws the member that gives the next state: each trajectory for itself, or the
whole batch, which leaves the other members uncomputed."""

Correlation = Literal["none", "full", "fitted"]
"""How the errors of different steps of an imagined trajectory depend."""


@dataclass(frozen=True)
class ModelConfig:
    """The learned dynamics and its fit."""

    kind: Literal["ensemble", "simulator"] = "ensemble"
    """`ensemble` learns; `simulator` imagines in the real environment itself, which
    tells the optimiser's errors from the model's."""
    members: Members = 5
    """K, networks in the ensemble."""
    hidden: Sizes = (512, 512)
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
    learning_rate: Rate = 2e-4
    """Adam's step size."""
    final_learning_rate: Rate | None = None
    """Adam's step size at the end of a whole fit, towards which it falls linearly in
    every fit; None keeps it (paper)."""
    batch_size: Batch = 1000
    """Rows per gradient step."""
    gradient_clip: Positive = 0.5
    """Largest global norm of a gradient (published code; the paper does not say)."""
    validation_fraction: InnerShare = 0.2
    """Share of each trajectory that a member holds out (the paper's 4-to-1 split)."""
    validation_rows: Batch = 20_000
    """Held-out rows looked at in each validation, at most."""
    validate_every: Count = 5
    """Epochs between validations."""
    validate_every_steps: Count | None = None
    """Gradient steps between validations, at most; None counts epochs alone (paper)."""
    patience: Whole = 25
    """Epochs without a lower validation loss after which a member stops."""
    max_epochs: Count = 10_000
    """Epochs per fit, at most."""
    max_steps: Count | None = None
    """Gradient steps per fit, at most; None leaves stopping to validation (paper)."""
    steps_per_new_row: Positive | None = None
    """Gradient steps of a fit per real transition that is new since the last one, but
    at least 200 and within the other bounds. To a member that starts afresh all are
    new. None does not count them (paper)."""
    reinitialise_every: Whole = 10
    """Iterations after which the members start afresh with a new split (published
    code); 0 always keeps the previous weights."""
    reinitialise_in_turn: bool = False
    """Whether members start afresh one after the other, spread evenly over these
    iterations, and keep their split; otherwise all at once (published code)."""
    precision: Precision = "float32"
    """Number format of the members' matrix products; sums are always float32."""
    fit_horizon: Annotated[int, Range("[1, 1000]")] = 1
    """Steps ahead over which a fit takes the error, through the member's own
    predictions; 1 looks one step ahead (paper). More helps where observations are
    noisy."""

    def __post_init__(self) -> None:
        require_ranges(self, "model")


@dataclass(frozen=True)
class GaussianModelConfig:
    """An ensemble of networks that give the mean and variance of what comes next."""

    members: Members = 5
    """K, networks in the ensemble."""
    hidden: Sizes = (200, 200, 200, 200)
    """Hidden layer sizes of each member (swish)."""
    reward: Literal["known", "learned"] = "known"
    """`known` uses the task's reward function; `learned` predicts the reward beside the
    state change, as is done where a task has no such function."""
    learning_rate: Rate = 1e-3
    """Adam's step size."""
    final_learning_rate: Rate | None = None
    """Adam's step size at the end of a fit, towards which it falls linearly in every
    fit; None keeps it (paper)."""
    weight_decay: tuple[Amount, ...] = (2.5e-5, 5e-5, 7.5e-5, 7.5e-5, 1e-4)
    """Half of this times the squared weights of each layer is added to the loss; the
    last number also holds for the layers after it."""
    bound_weight: Amount = 0.01
    """Weight of the distance between the learned bounds of the log-variance."""
    batch_size: Batch = 32
    """Rows per gradient step."""
    epochs: Count = 5
    """Passes over each member's bootstrap sample per fit."""
    max_steps: Count | None = None
    """Gradient steps per fit, at most; None leaves it to the epochs (paper)."""
    normalise_targets: bool = False
    """Whether state changes are brought to unit variance before they are learned; the
    paper's are not."""
    precision: Precision = "float32"
    """Number format of the members' matrix products; sums are always float32."""

    def __post_init__(self) -> None:
        require_ranges(self, "model")
        if not self.weight_decay:
            raise UsageError(
                "model.weight_decay is empty: give one number for all layers, or one "
                "for each."
            )


@dataclass(frozen=True)
class HomoscedasticModelConfig:
    """Gaussian members whose noise is the same everywhere, and their fit."""

    members: Members = 8
    """K, networks in the ensemble."""
    hidden: Sizes = (256, 256, 256)
    """Hidden layer sizes of each member (SiLU, layer normalisation)."""
    reward: Literal["known", "learned"] = "known"
    """`known` uses the task's reward function; `learned` predicts the reward beside the
    state change, as is done where a task has no such function."""
    termination: Literal["known", "learned"] = "known"
    """`known` uses the task's termination function, and without one nothing ends;
    `learned` learns from real episodes that terminated where imagined ones do."""
    learning_rate: Rate = 1e-3
    """Adam's step size at the start of a fit."""
    final_learning_rate: Rate = 0.0
    """Adam's step size at the end of a fit, towards which it falls linearly."""
    batch_size: Batch = 256
    """Rows per gradient step."""
    steps_per_new_row: Amount = 0.4
    """Gradient steps of a fit per real transition that is new since the last one."""
    min_steps: Count = 200
    """Gradient steps of a fit, at least."""
    max_steps: Count = 5000
    """Gradient steps of a fit, at most."""
    validation_fraction: InnerShare = 0.1
    """Share of each trajectory that a member holds out; the errors on it are its noise
    scale."""
    validation_rows: Batch = 2000
    """Held-out rows that the noise scale is taken from, at most."""
    precision: Precision = "float32"
    """Number format of the members' matrix products; sums are always float32."""

    def __post_init__(self) -> None:
        require_ranges(self, "model")
        if self.max_steps < self.min_steps:
            raise UsageError(
                f"model.max_steps is {self.max_steps}, less than model.min_steps = "
                f"{self.min_steps}: raise the one or lower the other."
            )


@dataclass(frozen=True)
class MultiStepModelConfig:
    """A single network and its multi-step loss."""

    kind: Literal["network", "simulator"] = "network"
    """`network` learns; `simulator` imagines in the real environment itself, which
    tells the optimiser's errors from the model's."""
    hidden: Sizes = (500, 500)
    """Hidden layer sizes (ReLU)."""
    reward: Literal["known", "learned"] = "known"
    """`known` uses the task's reward function; `learned` predicts the reward beside
    the state change."""
    termination: Literal["known", "learned"] = "known"
    """`known` uses the task's termination function, and without one nothing ends;
    `learned` learns from real episodes that terminated where imagined ones do."""
    steps: Annotated[int, Range("[1, 1000]")] = 2
    """Steps that the loss follows the model's own predictions."""
    batch_size: Batch = 128
    """Sequences per gradient step."""
    learning_rate: Rate = 1e-3
    """Adam's step size."""
    weight_decay: Amount = 1e-5
    """Half of this times the squared norm of all parameters is added to the loss."""
    gradient_clip: Positive = 2.0
    """Largest global norm of a gradient."""
    precision: Precision = "float32"
    """Number format of the network's matrix products; sums are always float32."""

    def __post_init__(self) -> None:
        require_ranges(self, "model")


@dataclass(frozen=True)
class ImaginationConfig:
    """Virtual trajectories."""

    trajectories: Batch = 200
    """Virtual trajectories per update."""
    shards: Annotated[int, Range("[1, 1000]")] = 2
    """Independent parts into which an imagined batch is cut, so that as many cores can
    work on it; part of the random stream, hence of the result."""
    runaway: Positive = 1e5
    """A trajectory is masked and counted when a number of its state lies further than
    this many standard deviations from the mean of the real observations."""
    steps: Steps | None = None
    """Steps per virtual trajectory, at most; None takes the task's horizon (paper)."""
    real_starts: Share = 0.0
    """Share of the virtual trajectories that begin in a stored real state, with the
    steps that its episode had left; the others begin where episodes do (paper: all)."""
    disagreement_stop: PositiveShare | None = None
    """A virtual trajectory is cut off, with V beyond it, after a step about which the
    members disagree more than about this share of the real steps (1: about any of
    them); None lets it go on (paper)."""
    draw: Literal["step", "rollout"] = "step"
    """When a virtual trajectory changes to another member: at every step (paper), or
    never, so that it stays in one possible world, with all of that world's errors."""

    def __post_init__(self) -> None:
        require_ranges(self, "imagination")

    def horizon(self, task_horizon: int) -> int:
        """Steps per virtual trajectory in a task of this horizon."""
        return min(self.steps or task_horizon, task_horizon)


@dataclass(frozen=True)
class PlainReturnConfig:
    """Discount, and units of rewards and advantages."""

    gamma: PositiveShare = 0.99
    """Discount factor (published code; the paper's text is undiscounted)."""
    lam: Share = 1.0
    """lambda of the advantage estimate; 1 is the paper's return minus value."""
    bootstrap: bool = False
    """Past the horizon expect V of the last state; otherwise nothing, as in the paper's
    finite-horizon returns."""
    reward_clip: Positive | None = 5.0
    """Raw rewards are cut to plus or minus this value (published code); None leaves
    them."""
    scale_rewards: bool = True
    """Divide rewards by the standard deviation of all real returns."""
    advantage_clip: Positive | None = 5.0
    """Advantages are cut to plus or minus this value before they are standardised."""
    standardise_advantages: bool = True
    """Give the advantages of a batch mean 0 and standard deviation 1."""

    def __post_init__(self) -> None:
        require_ranges(self, "returns")


@dataclass(frozen=True)
class ReturnConfig(PlainReturnConfig):
    """The same with units of the uncertainty: together they give alpha and beta their
    meaning."""

    variance_clip: Positive | None = 5.0
    """The variance D is cut to this value (published code); None leaves it."""
    uncertainty_units: Literal["reward", "advantage"] = "reward"
    """`reward` leaves sqrt(D) in units of scaled reward (published code); `advantage`
    divides it by the same standard deviation as the advantages."""
    correlation: Correlation = "none"
    """How errors of different steps depend in the uncertainty that penalty and bonus
    are made of: `none` is U of Algorithm 1 (paper); `full` is F, the variance over
    members of the sum of their deviations; `fitted` is U_rho with the correlation that
    the last evaluation found."""
    recalibrate: bool = False
    """Whether that uncertainty is multiplied by the scale that the last evaluation
    found; until one of five episodes or more has found it, it is left as it is."""
