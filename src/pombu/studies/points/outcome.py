"""What the experiment finds on one dataset."""

from dataclasses import dataclass

from jaxtyping import Float64
from numpy import ndarray

FLAT = "flat"
"""The stage at which the loss of the paper's V(s) is flat."""
TIMED = "timed"
"""The stage at which the loss of a V(s, h) that knows the step is flat."""


def stage_title(stage: str) -> str:
    """A stage in words."""
    titles = {FLAT: "V(s) until flat", TIMED: "V(s, h) until flat"}
    return titles.get(stage, f"{stage} V epochs (paper)")


@dataclass(frozen=True)
class Outcome:
    """One dataset of one environment, in the task's own units.

    Attributes:
        environment: the task.
        dataset: its number.
        error: real minus imagined Q of every start state.
        sigma: estimated uncertainty by stage: "0", "5", ..., "flat" and "timed".
        member_variance: variance over members of Q when each is rolled alone.
        member_error: real Q minus the mean of those.
        epochs: value epochs of the last two stages.
        losses: their (epochs, mean value loss) by window.
        model_loss: validation loss per member, in normalised units.
        model_epochs: epochs each member trained.
    """

    environment: str
    dataset: int
    error: Float64[ndarray, " N"]
    sigma: dict[str, Float64[ndarray, " N"]]
    member_variance: Float64[ndarray, " N"]
    member_error: Float64[ndarray, " N"]
    epochs: dict[str, int]
    losses: dict[str, tuple[tuple[int, float], ...]]
    model_loss: tuple[float, ...]
    model_epochs: tuple[float, ...]
