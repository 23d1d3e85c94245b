"""From measurements to a few sentences about what limits a run."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pombu.diagnostics.measure import Measured
from pombu.training.metrics import Row
from pombu.uncertainty.calibration import spearman

OPTIMISM = 2.0
"""Imagined returns this many standard errors above real ones are called biased."""
NOTABLE = 0.1
"""... if the gap is also this share of the returns' size."""
TOO_LOW, TOO_HIGH = 0.4, 3.0
"""Disagreement divided by error: between the two, uncertainty is called fitting."""
STILL = 1e-4
"""KL per update below which the policy hardly moves."""
QUIET = 0.15
"""Standard deviation of actions below which the policy hardly explores."""


@dataclass(frozen=True)
class Verdict:
    """What limits a run, and why one would say so."""

    limit: str
    """`model bias`, `uncertainty too low`, `uncertainty too high`, `exploration`, or
    `nothing in sight`."""
    sentences: tuple[str, ...]


def judge(measured: Measured, rows: Sequence[Row]) -> Verdict:
    """Read the measurements, and the run's metrics by iteration."""
    found: list[tuple[str, str]] = []
    notes = [_errors(measured)]
    gap, biased = optimism(measured)
    real, imagined = measured.real_returns.mean(), measured.imagined_returns
    if not len(imagined):
        sentence = (
            "In the learned world no trajectory stays finite: the model is not to be "
            "trusted beyond a few steps, so collect more data or shorten "
            "imagination.steps."
        )
        found.append(("model bias", sentence))
    elif biased:
        sentence = (
            f"In the learned world the policy earns {imagined.mean():.4g}, in the real "
            f"one {real:.4g}: it exploits what the model got wrong. More real steps "
            "per iteration, a longer fit, a larger alpha (POMBU) or shorter "
            "imagination.steps help."
        )
        found.append(("model bias", sentence))
    else:
        notes.append(
            f"The learned world promises {imagined.mean():.4g} and the real one gives "
            f"{real:.4g}: no optimism beyond chance ({gap:+.4g})."
        )
    ratio = disagreement_over_error(measured)
    several = measured.predicted.shape[1] > 1
    if several:
        found += _uncertainty(ratio, rows)
    if several and not any("uncertainty" in name for name, _ in found):
        notes.append(
            f"Typical disagreement of the members is {ratio:.2g} times their typical "
            "error; the rank correlation of the two is "
            f"{rank_correlation(measured.disagreement, measured.one_step_error):.2f} "
            "(1: they always disagree most where they err most)."
        )
    found += _exploration(measured, rows)
    if measured.constant:
        notes.append(
            f"Observed entries {', '.join(map(str, measured.constant))} never changed: "
            "nothing can be learned from them."
        )
    limit = found[0][0] if found else "nothing in sight"
    sentences = [sentence for _, sentence in found] or [
        "Nothing stands out: the model is fair, its uncertainty fits and the policy "
        "still moves. Train on."
    ]
    return Verdict(limit, (*sentences, *notes))


def optimism(measured: Measured) -> tuple[float, bool]:
    """Imagined minus real mean return, and whether that is more than chance."""
    real, imagined = measured.real_returns, measured.imagined_returns
    if not len(imagined):
        return float("nan"), True
    gap = float(imagined.mean() - real.mean())
    spread = real.var() / len(real) + imagined.var() / len(imagined)
    large = NOTABLE * max(abs(float(real.mean())), float(real.std()))
    return gap, gap > max(OPTIMISM * float(np.sqrt(spread)), large)


def disagreement_over_error(measured: Measured) -> float:
    """Typical disagreement of the members divided by their typical error."""
    error = float(np.median(measured.one_step_error))
    return float(np.median(measured.disagreement)) / max(error, 1e-12)


def rank_correlation(one: np.ndarray, two: np.ndarray) -> float:
    """Spearman's correlation; 0 where one of the two does not vary."""
    found = spearman(one.astype(float), two.astype(float))
    return 0.0 if math.isnan(found) else found


def _errors(measured: Measured) -> str:
    steps = len(measured.error)
    worst = int(np.argmax(measured.error[-1]))
    return (
        f"Predictions are off by {measured.error[0].mean():.2g} standard deviations "
        f"after 1 step and by {measured.error[-1].mean():.2g} after {steps}; entry "
        f"{worst} is the worst ({measured.error[-1, worst]:.2g})."
    )


def _uncertainty(ratio: float, rows: Sequence[Row]) -> list[tuple[str, str]]:
    kl = _last(rows, "kl")
    if ratio < TOO_LOW:
        sentence = (
            f"The members agree more than they are right: their disagreement is only "
            f"{ratio:.2g} of their error, so what is uncertain does not show. Raise "
            "model.members, or POMBU's alpha."
        )
        return [("uncertainty too low", sentence)]
    if ratio > TOO_HIGH and kl is not None and kl < STILL:
        sentence = (
            f"The members disagree {ratio:.2g} times as much as they err, and the "
            f"policy hardly moves (KL {kl:.1g} per update). Fit longer, or lower "
            "POMBU's alpha, whose penalty holds it back."
        )
        return [("uncertainty too high", sentence)]
    return []


def _exploration(measured: Measured, rows: Sequence[Row]) -> list[tuple[str, str]]:
    returns = np.array([row["return_real"] for row in rows if "return_real" in row])
    if len(returns) < 6 or measured.action_std > QUIET:
        return []
    third = len(returns) // 3
    before, late = returns[third : 2 * third], returns[-third:]
    if late.mean() > before.mean() + max(before.std(), late.std()):
        return []
    sentence = (
        f"Actions vary by only {measured.action_std:.2g} of the box's half-width, and "
        f"the return has stood still ({before.mean():.4g}, then {late.mean():.4g}): "
        "the run sees nothing new. Give the policy more noise, or raise POMBU's beta."
    )
    return [("exploration", sentence)]


def _last(rows: Sequence[Row], name: str) -> float | None:
    values = [row[name] for row in rows if name in row]
    return float(np.mean(values[-3:])) if values else None
