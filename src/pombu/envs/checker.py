"""The environment checker: real steps against what pombu will assume about them.

JAX is imported where a contract is called, so that importing pombu stays quick.
"""

import os
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from pombu.envs.catalogue import Env, close, in_one_line
from pombu.envs.collection import constant_end, suspected_limit
from pombu.envs.contract import Contract, Part
from pombu.envs.environment import Array32
from pombu.envs.task import Task
from pombu.envs.wrappers import StackedContract
from pombu.errors import UsageError, require_seed

Verdict = Literal["pass", "warn", "fail"]

START_SAMPLES = 200

REWARD_TOLERANCE = 1e-5
"""Allowed error of a known reward, relative to 1 + |reward|: what float32 loses."""

CONTRACT_STARTS = 2000
START_SIGNIFICANCE = 1e-3
"""Chance to call equal start distributions different, over all dimensions together."""


@dataclass(frozen=True)
class Finding:
    """One thing compared."""

    subject: str
    verdict: Verdict
    detail: str
    """What was found, with numbers."""


@dataclass(frozen=True)
class Report:
    """All findings about one environment."""

    id: str
    steps: int
    has_contract: bool
    findings: tuple[Finding, ...]

    @property
    def passed(self) -> bool:
        """Whether nothing failed (warnings do not count)."""
        return all(finding.verdict != "fail" for finding in self.findings)


@dataclass(frozen=True)
class Walk:
    """Real steps under uniformly random actions.

    Both ends of each step are clean where the environment tells its clean observation;
    `seen` has every observation as the agent sees it, resets and noise included.
    """

    obs: Array32
    actions: Array32
    next_obs: Array32
    rewards: npt.NDArray[np.float64]
    terminated: npt.NDArray[np.bool_]
    seen: Array32
    type_faults: frozenset[str]
    lengths: tuple[int, ...] = ()
    """Steps of each episode that was seen whole."""
    ends: tuple[bool, ...] = ()
    """Whether it terminated."""


class SizeError(Exception):
    """An observation is not of the size that its space has."""


def check(
    task: Task, steps: int = 300, seed: int = 0, resets: int = START_SAMPLES
) -> Report:
    """Take real steps and say what agrees with the contract and what does not."""
    if steps < 1:
        raise UsageError(f"steps is {steps}: give 1 or more real steps to compare.")
    require_seed(seed)
    env = task.make()
    try:
        walk, again = (_walk(task, env, steps, seed) for _ in range(2))
        other = _walk(task, env, steps, seed + 1)
        starts = np.stack([env.reset(seed=seed + i)[0] for i in range(resets)])
        findings = [_bounds(walk, env), _dtypes(walk, env)]
    except SizeError as error:
        findings = [Finding("steps", "fail", str(error))]
    except Exception as error:
        if os.environ.get("POMBU_DEBUG"):
            traceback.print_exception(error)
        detail = f"the environment raised {in_one_line(error)}"
        findings = [Finding("steps", "fail", detail)]
    else:
        findings.append(_determinism(walk.seen, again.seen, other.seen))
        found = _substitutes(walk, starts)
        if task.contract is not None:
            found |= _check_contract(task.contract, task.known, walk, starts, seed)
            findings += _spelling(task.contract)
        findings += [*found.values(), *_time_limit(task, walk)]
    finally:
        close(env)
    has_contract = task.contract is not None
    return Report(task.config.id, steps, has_contract, tuple(findings))


def _walk(task: Task, env: Env, steps: int, seed: int) -> Walk:
    # The same actions for every seed: a difference then comes from the environment.
    policy_actions = np.random.default_rng(0).uniform(-1, 1, (steps, task.action_dim))
    # The corners of the box, too: a policy's actions often lie there.
    policy_actions[:2] = [[-1.0], [1.0]][:steps]
    actions = task.action_box.to_box(policy_actions.astype(np.float32))
    observation, info = _sized(task, *env.reset(seed=seed))
    seen = [observation]
    rows: list[tuple[Any, ...]] = []
    type_faults: set[str] = set()
    lengths, last, steps = [], [], 0
    for action in actions:
        before = info.get("clean_observation", observation)
        observation, reward, terminated, truncated, info = env.step(
            task.action_box.to_env(action)
        )
        _sized(task, observation, info)
        type_faults |= _type_faults(reward, terminated, truncated)
        after = info.get("clean_observation", observation)
        rows.append((before, after, np.asarray(reward).ravel()[0], terminated))
        seen.append(observation)
        steps += 1
        if terminated or truncated:
            lengths.append(steps)
            last.append(bool(terminated))
            steps = 0
            observation, info = _sized(task, *env.reset())
            seen.append(observation)
    obs, next_obs, rewards, ends = zip(*rows, strict=True)
    return Walk(
        obs=np.stack(obs),
        actions=actions,
        next_obs=np.stack(next_obs),
        rewards=np.asarray(rewards, dtype=np.float64),
        terminated=np.asarray(ends, dtype=bool),
        seen=np.stack(seen),
        type_faults=frozenset(type_faults),
        lengths=tuple(lengths),
        ends=tuple(last),
    )


def _sized(
    task: Task, observation: Array32, info: dict[str, Any]
) -> tuple[Array32, dict[str, Any]]:
    if observation.size != task.observation_dim:
        raise SizeError(
            f"the environment gave an observation with {observation.size} entries "
            f"where its space has {task.observation_dim}"
        )
    return observation, info


def _substitutes(walk: Walk, starts: Array32) -> dict[str, Finding]:
    """What pombu does instead of each function that the environment does not offer."""
    low, mean, high = walk.rewards.min(), walk.rewards.mean(), walk.rewards.max()
    reward = (
        "not known: pombu will learn it beside the dynamics (seen: "
        f"{low:.4g} to {high:.4g}, mean {mean:.4g})"
    )
    termination = (
        f"not known: {walk.terminated.sum()} of {len(walk.rewards)} random steps "
        "ended an episode; pombu will learn where real episodes end and, while none "
        "has, never terminate imagined ones"
    )
    start = (
        "not known: pombu will reuse observed starts (standard deviation over "
        f"{len(starts)} resets up to {starts.std(axis=0).max():.4g})"
    )
    return {
        "reward": Finding("reward", "pass", reward),
        "terminal": Finding("termination", "pass", termination),
        "initial": Finding("start distribution", "pass", start),
    }


def _time_limit(task: Task, walk: Walk) -> list[Finding]:
    """Episodes that terminate like clockwork, unless the contract knows better."""
    steps = constant_end(walk.lengths, walk.ends)
    if steps is None or "terminal" in task.known:
        return []
    return [Finding("time limit", "warn", suspected_limit(task.config.id, steps))]


def _spelling(contract: Contract) -> list[Finding]:
    """Methods of a contract that nobody calls, though their names look like it."""
    if isinstance(contract, StackedContract):
        contract = contract.whole
    if not isinstance(contract, Part):
        return []
    return [
        Finding(
            "contract",
            "warn",
            f"its {name!r} is not used: if it is the {meant} function, name it "
            f"{meant!r}",
        )
        for name, meant in contract.misspelt().items()
    ]


def _type_faults(reward: Any, terminated: Any, truncated: Any) -> set[str]:
    faults = set()
    if np.ndim(reward) != 0:
        faults.add(f"the reward has shape {np.shape(reward)} where one number is due")
    for name, flag in (("terminated", terminated), ("truncated", truncated)):
        if not isinstance(flag, bool | np.bool_):
            faults.add(f"{name} is a {type(flag).__name__} where a bool is due")
    return faults


def _bounds(walk: Walk, env: Env) -> Finding:
    box = env.observation_space
    assert isinstance(box, spaces.Box)
    values = walk.seen
    unfit = int((~np.isfinite(values)).sum() + (~np.isfinite(walk.rewards)).sum())
    if unfit:
        seen = np.argwhere(~np.isfinite(values))
        first = (
            f"observation {seen[0][0]} of the walk, entry {seen[0][1]}"
            if len(seen)
            else f"reward {np.flatnonzero(~np.isfinite(walk.rewards))[0]} of the walk"
        )
        detail = (
            f"{unfit} entries of observations or rewards are not finite, the first in "
            f"{first}"
        )
        return Finding("bounds", "fail", detail)
    outside = int(((values < box.low) | (values > box.high)).sum())
    constant = int((values.std(axis=0) == 0).sum())
    faults = []
    if outside:
        faults.append(
            f"{outside} of {values.size} observed numbers lie outside their space"
        )
    if constant:
        faults.append(f"{constant} of {values.shape[1]} entries never change")
    found = "; ".join(faults) or "all observed numbers lie in their space"
    detail = f"{found} (seen: {values.min():.4g} to {values.max():.4g})"
    return Finding("bounds", "warn" if faults else "pass", detail)


def _dtypes(walk: Walk, env: Env) -> Finding:
    if walk.type_faults:
        return Finding("dtypes", "fail", "; ".join(sorted(walk.type_faults)))
    inner, outer = env.unwrapped.observation_space, env.observation_space
    detail = f"observations as {walk.seen.dtype}, reward a number, end flags boolean"
    if inner.shape != outer.shape or inner.dtype != outer.dtype:
        detail += f" (made flat float32 from {inner})"
    return Finding("dtypes", "pass", detail)


def _determinism(first: Array32, again: Array32, other: Array32) -> Finding:
    n = len(first)
    if first.shape != again.shape:
        detail = f"the same seed gave {n} observations and then {len(again)}"
        return Finding("determinism", "fail", detail)
    if not np.array_equal(first, again, equal_nan=True):
        gap = float(np.nanmax(np.abs(first - again), initial=0.0))
        detail = f"the same seed gave two walks that differ by up to {gap:.4g}"
        return Finding("determinism", "fail", detail)
    if np.array_equal(first, other, equal_nan=True):
        detail = f"two different seeds gave the same {n} observations"
        return Finding("determinism", "warn", detail)
    detail = f"one seed gave the same {n} observations twice, another seed others"
    return Finding("determinism", "pass", detail)


def _check_contract(
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
    import jax

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
    import jax

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
    import jax

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
