"""Compare a contract with real steps."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import numpy.typing as npt

from pombu.envs.checker import Finding, Walk
from pombu.envs.contract import Contract
from pombu.envs.environment import Array32
from pombu.envs.lookup import in_one_line
from pombu.errors import UsageError

REWARD_TOLERANCE = 1e-5
"""Allowed error of a known reward, relative to 1 + |reward|: what float32 loses."""

CONTRACT_STARTS = 2000
START_SIGNIFICANCE = 1e-3
"""Chance to call equal start distributions different, over all dimensions together."""


def check_contract(
    contract: Contract,
    known: frozenset[str],
    walk: Walk,
    starts: Array32,
    seed: int,
) -> dict[str, Finding]:
    """Compare the known functions; one that raises fails."""
    compare: dict[str, Callable[[], Finding]] = {
        "reward": lambda: _guarded("reward", _reward, contract, walk),
        "terminal": lambda: _guarded("termination", _termination, contract, walk),
        "initial": lambda: _guarded(
            "start distribution", _starts, contract, starts, seed
        ),
    }
    return {name: found() for name, found in compare.items() if name in known}


def _guarded(subject: str, compare: Callable[..., Finding], *args: Any) -> Finding:
    try:
        return compare(*args)
    except UsageError as error:
        return Finding(subject, "fail", str(error).rstrip("."))
    except Exception as error:
        detail = f"the contract raised {in_one_line(error)}"
        return Finding(subject, "fail", detail)


def _reward(contract: Contract, walk: Walk) -> Finding:
    known = np.asarray(jax.jit(contract.reward)(walk.obs, walk.actions, walk.next_obs))
    if known.shape != walk.rewards.shape:
        return _wrong_shape("reward", known.shape, walk.rewards.shape)
    error = np.abs(known - walk.rewards)
    relative = error / (1 + np.abs(walk.rewards))
    worst = int(np.argmax(np.nan_to_num(relative, nan=np.inf)))
    wrong = int((~(relative <= REWARD_TOLERANCE)).sum())
    detail = f"largest error {error[worst]:.2g} over {len(error)} steps"
    if not wrong:
        return Finding("reward", "pass", detail)
    detail += (
        f", at step {worst} where the environment gave {walk.rewards[worst]:.6g} and "
        f"the contract {known[worst]:.6g}; {wrong} steps differ"
    )
    return Finding("reward", "fail", detail)


def _termination(contract: Contract, walk: Walk) -> Finding:
    known = np.asarray(
        jax.jit(contract.terminal)(walk.obs, walk.actions, walk.next_obs)
    )
    if known.shape != walk.terminated.shape:
        return _wrong_shape("termination", known.shape, walk.terminated.shape)
    if known.dtype != np.bool_:
        detail = (
            f"terminal returned {known.dtype} where bool is due: compare, as in "
            "`next_obs[..., 0] > 1`"
        )
        return Finding("termination", "fail", detail)
    missed = int((walk.terminated & ~known).sum())
    invented = int((known & ~walk.terminated).sum())
    detail = (
        f"{walk.terminated.sum()} of {len(known)} steps ended an episode; the contract "
        f"missed {missed} and ended {invented} others"
    )
    return Finding("termination", "fail" if missed or invented else "pass", detail)


def _starts(contract: Contract, starts: Array32, seed: int) -> Finding:
    known = np.asarray(contract.initial(jax.random.key(seed), CONTRACT_STARTS))
    due = (CONTRACT_STARTS, starts.shape[1])
    if known.shape != due:
        return _wrong_shape("start distribution", known.shape, due)
    statistic = kolmogorov_smirnov(starts, known)
    critical = _critical_value(len(starts), len(known), starts.shape[1])
    worst = int(np.argmax(statistic))
    different = int((statistic > critical).sum())
    detail = (
        f"Kolmogorov-Smirnov statistic at most {statistic[worst]:.3f} (critical "
        f"{critical:.3f}) over {len(starts)} resets and {len(statistic)} dimensions"
    )
    if not different:
        return Finding("start distribution", "pass", detail)
    detail += (
        f"; {different} dimensions differ, most of all number {worst}: resets have "
        f"mean {starts[:, worst].mean():.4g} and deviation "
        f"{starts[:, worst].std():.4g}, the contract {known[:, worst].mean():.4g} and "
        f"{known[:, worst].std():.4g}"
    )
    return Finding("start distribution", "fail", detail)


def kolmogorov_smirnov(one: Array32, two: Array32) -> npt.NDArray[np.float64]:
    """Largest gap between the two samples' distribution functions, per dimension.

    Values are rounded first, so that a constant computed in two ways counts as equal.
    """
    gaps = []
    for a, b in zip(one.T, two.T, strict=True):
        a, b = np.sort(np.round(a, 5)), np.sort(np.round(b, 5))
        at = np.concatenate([a, b])
        below_a = np.searchsorted(a, at, side="right") / len(a)
        below_b = np.searchsorted(b, at, side="right") / len(b)
        gaps.append(np.abs(below_a - below_b).max())
    return np.asarray(gaps)


def _critical_value(n: int, m: int, dimensions: int) -> float:
    """Asymptotic critical value, with Bonferroni's correction for many dimensions."""
    level = START_SIGNIFICANCE / dimensions
    return float(np.sqrt(-np.log(level / 2) / 2 * (n + m) / (n * m)))


def _wrong_shape(subject: str, given: tuple[int, ...], due: tuple[int, ...]) -> Finding:
    remedy = "reduce the last axis and keep all others"
    if subject == "start distribution":
        remedy = "return one row per start"
    detail = f"the contract returned shape {given} where {due} is due: {remedy}"
    return Finding(subject, "fail", detail)
