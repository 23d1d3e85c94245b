"""What an uncertainty from K members is for, and what a finite K does to it.

The variance of Q over K members can stand for three different things:

- ``"posterior"``: the spread of Q over the worlds that the data leave possible. An
  agent that explores, or that weighs one world against another, asks for this.
- ``"prediction"``: how far the true Q lies from the reported one, the members' mean,
  if truth and members are draws from one posterior. An interval asks for this: the
  mean of K draws is uncertain itself, hence the factor 1 + 1/K.
- ``"mean"``: the standard error of the reported Q where members scatter independently
  around the truth, as networks do that differ by their start and their share of the
  data alone. Averaging K of them removes most of what they disagree about.

Which one holds for an ensemble is an empirical question. Errors on held-out returns
answer it (`pombu.uncertainty.Recalibration`); the factors here say what to expect.
"""

import math
from typing import Any

from pombu.errors import UsageError

PURPOSES = ("posterior", "prediction", "mean")


def variance_factor(members: int, purpose: str = "posterior", ddof: int = 0) -> float:
    """What to multiply a members' variance by so that it fits its purpose on average.

    Args:
        members: K, 2 or more.
        purpose: ``"posterior"``, ``"prediction"`` or ``"mean"``, as described above.
        ddof: how the variance was taken: 0 divided by K, 1 by K - 1.

    Returns:
        For ddof 1: 1, 1 + 1/K and 1/K; for ddof 0 each times K/(K - 1).
    """
    _require(members, ddof)
    if purpose not in PURPOSES:
        raise UsageError(
            f"purpose is {purpose!r}; it must be one of {', '.join(PURPOSES)}."
        )
    own = {"posterior": 1.0, "prediction": 1 + 1 / members, "mean": 1 / members}
    return own[purpose] * (members / (members - 1) if ddof == 0 else 1.0)


def expected_z_squared(members: int, steps: float = 1, ddof: int = 0) -> float:
    """Mean of ((truth - mean of members) / sigma)^2 for a perfect ensemble.

    Truth and members are draws from one Gaussian posterior; sigma^2 is the members'
    variance, which is itself a noisy estimate, and a small sigma weighs heavily in the
    mean of z^2. So 1 is not what to expect of few members.

    Args:
        members: K, 2 or more.
        steps: over how many independent steps of equal size sigma^2 is a sum. 1 is the
            variance of one step, or of a whole sum (F, members rolled alone); infinity
            is the limit of Algorithm 1 over a long trajectory.
        ddof: how the variance was taken: 0 divided by K, 1 by K - 1.

    Returns:
        With n = steps (K - 1) degrees of freedom, (1 + 1/K) n / (n - 2) for ddof 1 and
        K/(K - 1) times that for ddof 0; infinite for n of 2 or less. For K = 5 and ddof
        0: 3 for one step, 1.5 for many.
    """
    _require(members, ddof)
    if not steps >= 1:
        raise UsageError(f"steps is {steps}; it must be 1 or more, or infinite.")
    freedom = steps * (members - 1)
    if freedom <= 2:
        return math.inf
    noise = 1.0 if math.isinf(freedom) else freedom / (freedom - 2)
    return variance_factor(members, "prediction", ddof) * noise


def _require(members: Any, ddof: Any) -> None:
    if members < 2:
        raise UsageError(
            f"members is {members}; a spread needs 2 members or more to be judged."
        )
    if ddof not in (0, 1):
        raise UsageError(f"ddof is {ddof}; it must be 0 (1/K) or 1 (1/(K-1)).")
