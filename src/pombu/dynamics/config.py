"""Configs of learned dynamics, of imagination in them, and of returns.

Defaults are the paper's HalfCheetah (H=200), completed from the published code where
the paper is silent.
"""

from dataclasses import dataclass
from typing import Literal

from pombu.errors import UsageError, at_least, within

Precision = Literal["float32", "bfloat16"]

Activation = Literal["relu", "silu"]

Normalisation = Literal["weight", "layer"]

Draw = Literal["trajectory", "batch"]
"""Who draws the member that gives the next state: each trajectory for itself, or the
whole batch, which leaves the other members uncomputed."""


@dataclass(frozen=True)
class ModelConfig:
    """The learned dynamics and its fit."""

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
class GaussianModelConfig:
    """An ensemble of networks that give the mean and variance of what comes next."""

    members: int = 5
    """K, networks in the ensemble."""
    hidden: tuple[int, ...] = (200, 200, 200, 200)
    """Hidden layer sizes of each member (swish)."""
    reward: Literal["known", "learned"] = "known"
    """`known` uses the task's reward function; `learned` predicts the reward beside the
    state change, as is done where a task has no such function."""
    learning_rate: float = 1e-3
    """Adam's step size."""
    final_learning_rate: float | None = None
    """Adam's step size at the end of a fit, towards which it falls linearly in every
    fit; None keeps it (paper)."""
    weight_decay: tuple[float, ...] = (2.5e-5, 5e-5, 7.5e-5, 7.5e-5, 1e-4)
    """Half of this times the squared weights of each layer is added to the loss; the
    last number also holds for the layers after it."""
    bound_weight: float = 0.01
    """Weight of the distance between the learned bounds of the log-variance."""
    batch_size: int = 32
    """Rows per gradient step."""
    epochs: int = 5
    """Passes over each member's bootstrap sample per fit."""
    max_steps: int | None = None
    """Gradient steps per fit, at most; None leaves it to the epochs (paper)."""
    normalise_targets: bool = False
    """Whether state changes are brought to unit variance before they are learned; the
    paper's are not."""
    precision: Precision = "float32"
    """Number format of the members' matrix products; sums are always float32."""

    def __post_init__(self) -> None:
        for name in ("members", "batch_size", "epochs"):
            at_least(f"model.{name}", getattr(self, name), 1)
        if self.max_steps is not None:
            at_least("model.max_steps", self.max_steps, 1)
        if not self.weight_decay:
            raise UsageError(
                "model.weight_decay is empty: give one number for all layers, or one "
                "for each."
            )


@dataclass(frozen=True)
class HomoscedasticModelConfig:
    """Gaussian members whose noise is the same everywhere, and their fit."""

    members: int = 8
    """K, networks in the ensemble."""
    hidden: tuple[int, ...] = (256, 256, 256)
    """Hidden layer sizes of each member (SiLU, layer normalisation)."""
    reward: Literal["known", "learned"] = "known"
    """`known` uses the task's reward function; `learned` predicts the reward beside the
    state change, as is done where a task has no such function."""
    termination: Literal["known", "learned"] = "known"
    """`known` uses the task's termination function, and without one nothing ends;
    `learned` learns from real episodes that terminated where imagined ones do."""
    learning_rate: float = 1e-3
    """Adam's step size at the start of a fit."""
    final_learning_rate: float = 0.0
    """Adam's step size at the end of a fit, towards which it falls linearly."""
    batch_size: int = 256
    """Rows per gradient step."""
    steps_per_new_row: float = 0.4
    """Gradient steps of a fit per real transition that is new since the last one."""
    min_steps: int = 200
    """Gradient steps of a fit, at least."""
    max_steps: int = 5000
    """Gradient steps of a fit, at most."""
    validation_fraction: float = 0.1
    """Share of each trajectory that a member holds out; the errors on it are its noise
    scale."""
    validation_rows: int = 2000
    """Held-out rows that the noise scale is taken from, at most."""
    precision: Precision = "float32"
    """Number format of the members' matrix products; sums are always float32."""

    def __post_init__(self) -> None:
        for name in ("members", "batch_size", "min_steps", "validation_rows"):
            at_least(f"model.{name}", getattr(self, name), 1)
        at_least("model.max_steps", self.max_steps, self.min_steps)
        at_least("model.steps_per_new_row", self.steps_per_new_row, 0)
        fraction = self.validation_fraction
        within("model.validation_fraction", fraction, "(0, 1)", 0 < fraction < 1)


@dataclass(frozen=True)
class MultiStepModelConfig:
    """A single network and its multi-step loss."""

    kind: Literal["network", "simulator"] = "network"
    """`network` learns; `simulator` imagines in the real environment itself, which
    tells the optimiser's errors from the model's."""
    hidden: tuple[int, ...] = (500, 500)
    """Hidden layer sizes (ReLU)."""
    reward: Literal["known", "learned"] = "known"
    """`known` uses the task's reward function; `learned` predicts the reward beside
    the state change."""
    termination: Literal["known", "learned"] = "known"
    """`known` uses the task's termination function, and without one nothing ends;
    `learned` learns from real episodes that terminated where imagined ones do."""
    steps: int = 2
    """Steps that the loss follows the model's own predictions."""
    batch_size: int = 128
    """Sequences per gradient step."""
    learning_rate: float = 1e-3
    """Adam's step size."""
    weight_decay: float = 1e-5
    """Half of this times the squared norm of all parameters is added to the loss."""
    gradient_clip: float = 2.0
    """Largest global norm of a gradient."""
    precision: Precision = "float32"
    """Number format of the network's matrix products; sums are always float32."""

    def __post_init__(self) -> None:
        at_least("model.steps", self.steps, 1)
        at_least("model.batch_size", self.batch_size, 1)


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
