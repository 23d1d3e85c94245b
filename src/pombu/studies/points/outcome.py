"""What the experiment finds on one dataset."""

from dataclasses import dataclass

from jaxtyping import Float64
from numpy import ndarray

FLAT = "flat"
"""Name of the stage at which the value loss is flat."""


@dataclass(frozen=True)
class Outcome:
    """One dataset of one environment, in the task's own units.

    Attributes:
        environment: the task.
        dataset: its number.
        error: real minus imagined Q of every start state.
        sigma: estimated uncertainty by stage: "0", "5", ..., and "flat".
        member_variance: variance over members of Q when each is rolled alone.
        member_error: real Q minus the mean of those.
        flat_epochs: value epochs until the loss was flat.
        losses: (epochs, mean value loss) of the windows of value training.
        model_loss: validation loss per member, in normalised units.
        model_epochs: epochs each member trained.
    """

    environment: str
    dataset: int
    error: Float64[ndarray, " N"]
    sigma: dict[str, Float64[ndarray, " N"]]
    member_variance: Float64[ndarray, " N"]
    member_error: Float64[ndarray, " N"]
    flat_epochs: int
    losses: tuple[tuple[int, float], ...]
    model_loss: tuple[float, ...]
    model_epochs: tuple[float, ...]
