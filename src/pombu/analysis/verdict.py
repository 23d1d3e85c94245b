"""What limits a run, in sentences: the verdict on a diagnosis's measurements.

Causes come before what follows from them: too few members, ends that are missed, a
reward that is off or an entry that is noise come before the optimism they lead to. Each
is judged by its size against its own spread, and by whether it matters next to what the
run has learned.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pombu.analysis.diagnosis import (
    Measurements,
    disagreement_over_error,
    noisy_dimensions,
    step_sizes,
)
from pombu.training.metrics import Row
from pombu.uncertainty.calibration import spearman

CERTAIN = 2.5
"""A mean this many standard errors from 0 is no chance."""
NOTABLE = 0.1
"""Share of the returns' size below which a gap does not matter."""
TOO_LOW, TOO_HIGH = 0.5, 3.5
"""Disagreement by error, divided by what a perfect ensemble of the size has."""
FAR_TOO_LOW = 0.25
"""Below it, disagreement says nothing even where returns come as promised."""
FEW = 3
"""Members that are needed for a spread to mean something."""
MISSED = 0.3
"""Share of real ends, or invented ends per episode, from which ends are wrong."""
STILL = 1e-4
"""KL per update below which the policy hardly moves."""
QUIET = 0.15
"""Standard deviation of actions below which the policy hardly explores."""
RISE = 2.0
"""Standard deviations by which a return must have risen to count as learned."""
EVALUATIONS = 6
"""Evaluations without which nothing is said about progress."""
WORST = 3
"""Entries that are named as the worst."""

LIMITS = (
    "too few members",
    "wrong terminations",
    "wrong reward",
    "noisy observation",
    "optimistic model",
    "pessimistic model",
    "uncertainty too low",
    "uncertainty too high",
    "exploration",
    "no progress",
    "converged",
    "nothing in sight",
)
"""Every verdict there is."""


@dataclass(frozen=True)
class Verdict:
    """What limits a run, and why one would say so."""

    limit: str
    """One of `LIMITS`."""
    sentences: tuple[str, ...]


@dataclass(frozen=True)
class Gap:
    """Imagined minus real return, from the same starts."""

    mean: float
    """NaN where no imagined trajectory has a return."""
    error: float
    """Standard error of the mean, by the spread over starts."""
    size: float
    """What returns of this task and run are measured by."""

    @property
    def matters(self) -> bool:
        """Whether it is neither chance nor small."""
        least = max(CERTAIN * self.error, NOTABLE * self.size)
        return bool(np.isnan(self.mean) or abs(self.mean) > least)

    def __str__(self) -> str:
        share = self.mean / max(self.size, 1e-12)
        return f"{self.mean:+.3g} ± {self.error:.2g}, {share:+.0%} of returns' size"


Finding = tuple[str, str]
"""A limit of `LIMITS`, and what was seen and may be tried."""


def find_limit(measured: Measurements, rows: Sequence[Row]) -> Verdict:
    """Read the measurements, and the run's metrics by iteration."""
    gap = gap_of(measured, rows)
    progress = Progress.of(rows)
    # 1. Causes, then what follows from them.
    found = [
        *_members(measured),
        *_ends(measured),
        *_reward(measured, gap),
        *_noise(measured),
        *_promise(measured, gap, _reward_total(measured)[0]),
        *_uncertainty(measured, rows, gap),
    ]
    notes = [_errors(measured), *_returns_note(gap, measured), *_ends_note(measured)]
    notes += [*_disagreement_note(measured, found), *_reliability(measured)]
    if measured.constant:
        named = ", ".join(measured.names[i] for i in measured.constant)
        notes.append(f"Never changed, so nothing is learned from it: {named}.")
    # 2. Where returns come as promised and do not rise any more, nothing limits.
    if progress is not None and progress.stands_still:
        if progress.rose and not gap.matters:
            seen = [sentence for _, sentence in found]
            return Verdict("converged", (_converged(progress), *seen, *notes))
        found.append(_standing(measured, progress))
    # 3. The first finding is what limits most: later ones may follow from it.
    if not found:
        return Verdict("nothing in sight", (_TRAIN_ON, *notes))
    return Verdict(found[0][0], (*(sentence for _, sentence in found), *notes))


_TRAIN_ON = (
    "Nothing stands out: the model keeps its promises, its uncertainty fits, and "
    "nothing speaks against training on."
)


def gap_of(measured: Measurements, rows: Sequence[Row] = ()) -> Gap:
    """How much more the learned dynamics promises than the real one gives.

    Episodes are compared with imagined ones from their own start, so that easy and hard
    starts do not blur the difference.
    """
    real, imagined = measured.real_returns, measured.imagined_returns
    returns = [row["return_real"] for row in rows if "return_real" in row]
    learned = max(returns) - returns[0] if returns else 0.0
    size = max(abs(float(real.mean())), float(real.std()), learned)
    kept = np.isfinite(imagined).any(1)
    if not kept.any():
        return Gap(float("nan"), float("nan"), size)
    gaps = np.array([np.nanmean(row) for row in imagined[kept]]) - real[kept]
    if len(gaps) > 1:
        error = float(gaps.std(ddof=1) / np.sqrt(len(gaps)))
    else:  # a real episode varies as imagined ones of its start do
        error = float(np.nanstd(imagined[kept]) * np.sqrt(1 + 1 / imagined.shape[1]))
    return Gap(float(gaps.mean()), error, size)


def summary_of(
    measured: Measurements, rows: Sequence[Row], verdict: Verdict
) -> dict[str, Any]:
    """The verdict and its numbers, for `diagnosis.json`."""
    gap = gap_of(measured, rows)
    promised = measured.imagined_returns[np.isfinite(measured.imagined_returns)]
    several, found = measured.members > 1, measured.reliability
    plain, corrected = (None, None) if found is None else found.at(0.9)
    return {
        "limit": verdict.limit,
        "sentences": verdict.sentences,
        "return_real": measured.real_returns.mean(),
        "return_imagined": promised.mean() if len(promised) else None,
        "optimism": gap.mean,
        "optimism_error": gap.error,
        "returns_size": gap.size,
        "reward_error": measured.reward_error.mean(),
        "ends": vars(measured.ends),
        "calibration": disagreement_over_error(measured) if several else None,
        "coverage_90": {"plain": plain, "corrected": corrected},
        "error_by_horizon": measured.error.mean(1).tolist(),
        "last_error": dict(zip(measured.names, measured.error[-1], strict=True)),
        "noisy": [measured.names[i] for i in noisy_dimensions(measured)],
    }


def rank_correlation(one: np.ndarray, two: np.ndarray) -> float:
    """Spearman's correlation; 0 where one of the two does not vary."""
    found = spearman(one.astype(float), two.astype(float))
    return 0.0 if np.isnan(found) else found


def _relative_disagreement(measured: Measurements) -> float:
    """Disagreement by error, divided by what members drawn like the truth have.

    Their variance is (K - 1) / K of the posterior's, and the squared error of their
    mean (K + 1) / K of it.
    """
    K = measured.members
    return disagreement_over_error(measured) / float(np.sqrt((K - 1) / (K + 1)))


def _members(measured: Measurements) -> list[Finding]:
    K = measured.members
    if K >= FEW or not measured.uses_disagreement:
        return []
    sentence = (
        f"The ensemble has {K} {'member' if K == 1 else 'members'}, so "
        + ("there is no uncertainty at all" if K == 1 else "their spread is a guess")
        + ": nothing keeps the policy from what the model got wrong. Give it five "
        "(`--model.members 5`)."
    )
    return [("too few members", sentence)]


def _ends(measured: Measurements) -> list[Finding]:
    ends = measured.ends
    if ends.missed >= 2 and ends.missed > MISSED * ends.real:
        remedy = (
            "collect more episodes that end (`--least-steps`), or give the "
            "environment a contract with `terminal`"
        )
        if measured.ends_known:
            remedy = (
                "learn them (`--model.termination learned`), or correct `terminal` in "
                "the environment's contract"
            )
        sentence = (
            f"Of {ends.real} real ends the learned dynamics misses {ends.missed}: the "
            "policy goes on earning where nothing is to be had. If they depend on what "
            "is observed at all (a clock is not; `pombu check-env` tells), "
            f"{remedy}."
        )
        return [("wrong terminations", sentence)]
    per_episode = ends.invented / len(measured.real_returns)
    if ends.invented >= 2 and per_episode > MISSED:
        sentence = (
            f"The learned dynamics ends {ends.invented} of {ends.others} real steps "
            f"that did not end ({per_episode:.2g} per episode): imagined episodes are "
            "too short. Collect more real steps (`--least-steps`), or give the "
            "environment a contract with `terminal`."
        )
        return [("wrong terminations", sentence)]
    return []


def _reward_total(measured: Measurements) -> tuple[float, float]:
    """How far rewards of a real episode are off in all, with its standard error."""
    sums = np.bincount(measured.episode, measured.reward_error)
    return float(sums.mean()), float(sums.std() / np.sqrt(max(len(sums) - 1, 1)))


def _reward(measured: Measurements, gap: Gap) -> list[Finding]:
    """Is the reward off along real steps, by more than chance and enough to matter?"""
    total, error = _reward_total(measured)
    if not abs(total) > max(CERTAIN * error, NOTABLE * gap.size):
        return []
    steps = len(measured.reward_error) / len(measured.real_returns)
    who, remedy = (
        "learned reward",
        "It may depend on what is not observed: give the environment a contract with "
        "its `reward`, observe what is missing, or fit for longer "
        "(`--model.max-steps`).",
    )
    if measured.reward_known:
        who = "contract's reward"
        remedy = "`pombu check-env` compares the contract with real steps: correct it."
    sentence = (
        f"The {who} is {abs(total) / steps:.3g} too {'high' if total > 0 else 'low'} "
        f"per real step, {total:+.3g} ± {error:.2g} in an episode. {remedy}"
    )
    return [("wrong reward", sentence)]


def _noise(measured: Measurements) -> list[Finding]:
    noisy = noisy_dimensions(measured)
    if not noisy:
        return []
    missed = (measured.one_step_error[:, noisy] ** 2).mean(0)
    # A network may be further off than a guess of no change at all.
    named = ", ".join(
        f"{measured.names[i]} ({min(share, 1.0):.0%})"
        for i, share in zip(noisy, missed, strict=True)
    )
    sentence = (
        "What changes in these observed entries cannot be predicted, though the "
        f"members agree about them (share that is missed): {named}. They are noise, or "
        "depend on what is not observed: observe more of the past (`--history 3`), "
        "filter them, or leave them out of the observation."
    )
    return [("noisy observation", sentence)]


def _promise(measured: Measurements, gap: Gap, by_reward: float) -> list[Finding]:
    """Does the model promise too much or too little, and by more than its reward?"""
    if np.isnan(gap.mean):
        sentence = (
            "In the learned dynamics no trajectory stays near the data: the model is "
            "not to be trusted beyond a few steps. Collect more (`--least-steps`) or "
            "imagine shorter (`--imagination.steps`)."
        )
        return [("optimistic model", sentence)]
    if not gap.matters:
        return []
    promised = float(np.nanmean(measured.imagined_returns))
    real = float(measured.real_returns.mean())
    seen = (
        f"In the learned dynamics the policy earns {promised:.4g}, in the real one "
        f"{real:.4g} ({gap}): "
    )
    limit = "optimistic model" if gap.mean > 0 else "pessimistic model"
    if not replace(gap, mean=gap.mean - by_reward).matters:
        return [(limit, f"{seen}the reward alone accounts for that.")]
    if gap.mean > 0:
        sentence = (
            f"{seen}it exploits what the model got wrong. Collect more real steps per "
            "iteration (`--least-steps`), imagine shorter (`--imagination.steps`), or "
            "raise POMBU's penalty (`--alpha`)."
        )
        return [(limit, sentence)]
    sentence = (
        f"{seen}the model undervalues what the policy does, and may lead it away from "
        "what is good. Collect more real steps per iteration (`--least-steps`), fit "
        "for longer (`--model.max-steps`), or imagine shorter "
        "(`--imagination.steps`)."
    )
    return [(limit, sentence)]


def _uncertainty(
    measured: Measurements, rows: Sequence[Row], gap: Gap
) -> list[Finding]:
    """Do the members disagree as much as they err, and does it matter?"""
    if measured.members < FEW:
        return []
    relative = _relative_disagreement(measured)
    misled = gap.mean > 0 and gap.matters
    if relative < FAR_TOO_LOW or (relative < TOO_LOW and misled):
        sentence = (
            "The members agree more than they are right: typical disagreement is "
            f"{disagreement_over_error(measured):.2g} of the typical error, so what is "
            "uncertain does not show. Give each less of the data in common "
            "(`--model.members 7`), or raise POMBU's penalty (`--alpha`)."
        )
        return [("uncertainty too low", sentence)]
    kl = [row["kl"] for row in rows if "kl" in row][-3:]
    if relative > TOO_HIGH and kl and np.mean(kl) < STILL:
        sentence = (
            f"The members disagree {disagreement_over_error(measured):.2g} times as "
            f"much as they err, and the policy hardly moves (KL {np.mean(kl):.1g} per "
            "update). Fit for longer (`--model.max-steps`), or lower POMBU's penalty "
            "(`--alpha`, `--minimum-kl`), which holds it back."
        )
        return [("uncertainty too high", sentence)]
    return []


@dataclass(frozen=True)
class Progress:
    """How the real return went over the run's evaluations."""

    first: float
    before: float
    late: float
    spread: float
    """Standard deviation of late evaluations, or of those before them."""

    @classmethod
    def of(cls, rows: Sequence[Row]) -> "Progress | None":
        """None where there are too few evaluations to tell."""
        returns = np.array([row["return_real"] for row in rows if "return_real" in row])
        if len(returns) < EVALUATIONS:
            return None
        third = len(returns) // 3
        before, late = returns[third : 2 * third], returns[-third:]
        spread = max(float(before.std()), float(late.std()))
        return cls(float(returns[0]), float(before.mean()), float(late.mean()), spread)

    @property
    def stands_still(self) -> bool:
        """Whether the last third is no better than the one before it."""
        rise = abs(self.late - self.first)
        return self.late <= self.before + max(self.spread, NOTABLE / 2 * rise)

    @property
    def rose(self) -> bool:
        """Whether the last third is clearly better than the first policy."""
        return self.late - self.first > RISE * self.spread


def _converged(progress: Progress) -> str:
    return (
        f"The return rose from {progress.first:.4g} to {progress.late:.4g} and has "
        "stood there since, and the learned dynamics promises the same: this is what "
        "the policy can find, and more training of this kind will change little. If it "
        "is good enough, you are done; if you know that more is possible, train "
        "another seed, or let it explore more (`--beta`, `--policy.initial-log-std`)."
    )


def _standing(measured: Measurements, progress: Progress) -> Finding:
    seen = (
        f"The return stands still ({progress.before:.4g}, then {progress.late:.4g}; "
        f"{progress.first:.4g} at first)"
    )
    if measured.action_std < QUIET:
        sentence = (
            f"{seen}, and actions vary by only {measured.action_std:.2g} of the box's "
            "half-width: the run sees nothing new. Give the policy more noise "
            "(`--policy.minimum-log-std`), or raise POMBU's `--beta`."
        )
        return "exploration", sentence
    sentence = (
        f"{seen}, though actions vary ({measured.action_std:.2g} of the box's "
        "half-width): perhaps the reward tells too little about what is better. Look "
        "at a video, at the scale of the reward, and at a longer `--horizon`."
    )
    return "no progress", sentence


def _errors(measured: Measurements) -> str:
    """How far predictions are off, and where most: the worst entries by name."""
    steps, last = len(measured.error), measured.error[-1]
    order = np.argsort(last)[::-1][:WORST]
    worst = ", ".join(f"{measured.names[i]} ({last[i]:.2g})" for i in order)
    return (
        f"Predictions are off by {measured.error[0].mean():.2g} standard deviations "
        f"after 1 step and by {last.mean():.2g} after {steps}; worst there: {worst}."
    )


def _returns_note(gap: Gap, measured: Measurements) -> list[str]:
    if gap.matters:
        return []
    return [
        f"The learned dynamics promises {np.nanmean(measured.imagined_returns):.4g} "
        f"and the real one gives {measured.real_returns.mean():.4g}: no optimism or "
        f"pessimism that matters ({gap})."
    ]


def _ends_note(measured: Measurements) -> list[str]:
    ends = measured.ends
    if not (ends.real or ends.invented or ends.imagined_share):
        return []
    share = ends.real / len(measured.real_returns)
    return [
        f"{share:.0%} of real and {ends.imagined_share:.0%} of imagined episodes end "
        f"for good before the time limit; step by step, {ends.missed} of {ends.real} "
        f"real ends are missed and {ends.invented} invented."
    ]


def _disagreement_note(measured: Measurements, found: Sequence[Finding]) -> list[str]:
    if measured.members < FEW or any("uncertainty" in limit for limit, _ in found):
        return []
    return [
        "Typical disagreement of the members is "
        f"{disagreement_over_error(measured):.2g} times their typical error; the rank "
        f"correlation of the two is {rank_correlation(*step_sizes(measured)):.2f} (1: "
        "they always disagree most where they err most)."
    ]


def _reliability(measured: Measurements) -> list[str]:
    """Do intervals hold as much as they say, on these new episodes?"""
    if measured.reliability is None:
        return []
    plain, corrected = measured.reliability.at(0.9)
    said = f"A 90 % interval by sqrt(U) holds {plain:.0%} of errors of n-step returns"
    if corrected is None:
        return [f"{said}; nothing corrects it (`--calibration.use`)."]
    return [f"{said}, and {corrected:.0%} as the run corrected it by real returns."]
