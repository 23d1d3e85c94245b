"""Presets of POMBU and MEPPO: tables and text of the paper's Appendix D as values.

`paper` is completed from the published code only where the paper is silent (the
defaults of the configs).

MEPPO is POMBU without its uncertainty: no penalty, no bonus, and the policy itself
collects the real data. Its imagined samples are the 8e7 of the paper's Table 1.
"""

from dataclasses import dataclass, replace
from typing import Any

from pombu.algorithms.config import (
    EPISODE_STEPS,
    FIRST_LOG_STD,
    LONG_HORIZON,
    REWARD_CLIP,
    ExplorationConfig,
    branches,
    fast_model,
    horizon_of,
    is_foreign,
    is_point,
    smoke_model,
    trajectories,
)
from pombu.algorithms.pombu.config import CalibrationConfig, POMBUConfig
from pombu.dynamics.config import ImaginationConfig, ModelConfig, ReturnConfig
from pombu.optim.config import PolicyConfig, TailConfig, ValueConfig


@dataclass(frozen=True)
class _Row:
    """A column of the paper's hyperparameter tables."""

    trajectories: int
    """Real trajectories per iteration; as many exploration policies."""
    updates: int
    iterations: int
    virtual: int
    """Virtual trajectories per update."""
    minibatch: int
    decay: int
    """Learning rate in iteration i: (decay - i) / (decay x 10^4)."""
    hidden: tuple[int, ...] = (512, 512)
    alpha: float = 0.5


_SHORT = {
    "Ant": _Row(20, 30, 150, 500, 1250, 160, (512, 512, 512)),
    "Walker2d": _Row(20, 30, 100, 500, 1250, 110),
    "HalfCheetah": _Row(10, 20, 100, 200, 500, 110),
    "Swimmer": _Row(10, 20, 50, 200, 500, 60),
}
"""Table 5: H = 200."""

_LONG = {
    "Ant": _Row(4, 30, 50, 50, 500, 60, (512, 512, 512), alpha=0.25),
    "Walker2d": _Row(4, 30, 50, 50, 500, 60),
    "HalfCheetah": _Row(4, 30, 50, 50, 500, 60, alpha=0.75),
    "Swimmer": _Row(4, 30, 50, 50, 500, 60),
}
"""Table 6 and the text around it: H = 1000."""

_AFRESH = {"Ant": 5, "Walker2d": 1}
"""After how many fits a member begins afresh in `fast`; elsewhere it never does."""

_POINT = _Row(10, 20, 10, 200, 500, 20, (64, 64))
"""The paper trains no policy in the point tasks; the models are its Figure 1's."""


def _row(task: str, horizon: int | None) -> _Row:
    if is_point(task):
        return _POINT
    table = _LONG if horizon is not None and horizon >= LONG_HORIZON else _SHORT
    return table.get(task, replace(table["HalfCheetah"], alpha=0.5))


def paper(task: str, horizon: int | None) -> POMBUConfig:
    """The values of Appendix D."""
    row = _row(task, horizon)
    final = (row.decay - row.iterations) / (row.decay * 1e4)
    return POMBUConfig(
        alpha=row.alpha,
        updates=row.updates,
        trajectories=row.trajectories,
        iterations=row.iterations,
        model=ModelConfig(hidden=row.hidden),
        imagination=ImaginationConfig(trajectories=row.virtual),
        policy=PolicyConfig(minibatch=row.minibatch, final_learning_rate=final),
        value=ValueConfig(minibatch=row.minibatch, final_learning_rate=final),
        exploration=ExplorationConfig(
            policies=row.trajectories, trajectories=row.virtual
        ),
    )


ALPHA = 0.05
"""Weight of the penalty in `fast`: standard deviations of the gain per standard
deviation of uncertainty, the same for all tasks and horizons."""


BETA = 1.0
"""Weight of the exploration bonus where exploration policies are asked for."""

DISAGREEMENT_STOP = 1.0
"""A branch of `fast` is cut off, with V and U_psi beyond it, where the members disagree
more than about any real step: a first fit promises anything there."""


def fast(task: str, horizon: int | None) -> POMBUConfig:
    """Branched imagination, one unit for gain and uncertainty, and bounded fits.

    Departures from `paper` and why: virtual trajectories are branches
    (`presets.branches`), continued by V and, for the uncertainty, by U_psi, and cut off
    where nothing is known (`DISAGREEMENT_STOP`); a branch stays with one member,
    because members that take turns average their errors out; episodes of 1000 steps
    that are learned from are cut off after 200, and all else is as with 200
    (`EPISODE_STEPS`); lambda is 0.95, because over a whole episode the noise of the
    return hides the gain of a step; A and sqrt(D) in one unit, because in units of
    reward the penalty falls silent as returns grow; the policy itself collects, because
    exploration policies changed nothing with one seed (docs/learning.md); members of
    half the width, with fits as `fast_model` says; half the noise at first
    (`FIRST_LOG_STD`); larger rates and minibatches for policy and value, because the
    conservative penalty, not the rate, limits the step; raw rewards are cut at 20
    instead of 5, which would cap the return at 1000.
    """
    if is_point(task):
        return _fast_point(horizon_of(task, horizon))
    if is_foreign(task):
        return _fast_foreign(task, horizon_of(task, horizon))
    base = paper(task, None)
    if horizon_of(task, horizon) >= LONG_HORIZON:
        base = replace(base, episode_steps=EPISODE_STEPS, evaluation_episodes=10)
    return replace(
        base,
        alpha=ALPHA,
        beta=BETA,
        model=fast_model(task, afresh_every=_AFRESH.get(task, 0)),
        imagination=_fast_imagination(40_000, horizon_of(task, horizon)),
        policy=replace(
            base.policy,
            minibatch=2000,
            learning_rate=3e-4,
            final_learning_rate=3e-5,
            initial_log_std=FIRST_LOG_STD,
        ),
        value=_fast_value(2000, 3e-4),
        tail=_fast_tail(2000, 1e-3),
        exploration=_no_explorers(200),
        calibration=CalibrationConfig(use=True),
        returns=_fast_returns(REWARD_CLIP),
    )


def _fast_imagination(samples: int, horizon: int) -> ImaginationConfig:
    return replace(
        branches(samples, horizon),
        disagreement_stop=DISAGREEMENT_STOP,
        draw="rollout",
    )


def _fast_value(minibatch: int, rate: float, **fields: Any) -> ValueConfig:
    return ValueConfig(
        minibatch=minibatch,
        learning_rate=rate,
        final_learning_rate=rate / 10,
        **fields,
    )


def _fast_tail(minibatch: int, rate: float, **fields: Any) -> TailConfig:
    return TailConfig(
        use=True,
        minibatch=minibatch,
        learning_rate=rate,
        final_learning_rate=rate / 10,
        **fields,
    )


def _fast_returns(reward_clip: float | None) -> ReturnConfig:
    return ReturnConfig(
        reward_clip=reward_clip,
        lam=0.95,
        bootstrap=True,
        uncertainty_units="advantage",
        variance_clip=None,
    )


def _no_explorers(trajectories: int) -> ExplorationConfig:
    """None, but with a sensible batch and a centred bonus where some are asked for."""
    return ExplorationConfig(policies=0, trajectories=trajectories, centred=True)


def _fast_point(horizon: int) -> POMBUConfig:
    return POMBUConfig(
        alpha=ALPHA,
        beta=BETA,
        updates=20,
        trajectories=10,
        iterations=10,
        model=ModelConfig(
            hidden=(64, 64),
            learning_rate=1e-3,
            batch_size=200,
            validation_rows=500,
            validate_every_steps=50,
            max_steps=400,
            reinitialise_every=0,
        ),
        imagination=_fast_imagination(3000, horizon),
        policy=PolicyConfig(
            learning_rate=1e-3,
            final_learning_rate=1e-4,
            reset_std_iterations=0,
            hidden=(32, 32),
        ),
        value=_fast_value(500, 1e-3, hidden=(32, 32)),
        tail=_fast_tail(500, 1e-3, hidden=(32, 32)),
        exploration=_no_explorers(100),
        calibration=CalibrationConfig(use=True),
        returns=_fast_returns(None),
    )


def _fast_foreign(task: str, horizon: int) -> POMBUConfig:
    """General values for an environment of the user's.

    Departures from the other tasks' `fast` and why: about 1000 real steps per
    iteration, also where episodes end early, because the first thousands decide in a
    small task; smaller networks and more epochs per fit, because those thousands are
    few rows; half as many samples and epochs per update with larger steps, which costs
    a quarter and suits smaller networks' tasks; the log-std is never set back, because
    a fifth of the planned iterations would be spent on that.
    """
    number = trajectories(1000, horizon)
    imagination = _fast_imagination(10_000, horizon)
    return POMBUConfig(
        alpha=ALPHA,
        beta=BETA,
        trajectories=number,
        least_steps=min(1000, number * horizon),
        iterations=30,
        evaluation_episodes=10,
        model=replace(
            fast_model(task),
            hidden=(200, 200),
            validation_rows=2000,
            max_epochs=100,
            max_steps=1000,
        ),
        imagination=imagination,
        policy=PolicyConfig(
            epochs=5,
            minibatch=1000,
            learning_rate=1e-3,
            final_learning_rate=1e-4,
            initial_log_std=FIRST_LOG_STD,
            reset_std_iterations=0,
        ),
        value=_fast_value(1000, 1e-3, epochs=5),
        tail=_fast_tail(1000, 1e-3),
        exploration=_no_explorers(imagination.trajectories // 2),
        calibration=CalibrationConfig(use=True),
        returns=_fast_returns(None),
    )


def smoke(task: str, horizon: int | None) -> POMBUConfig:
    """Eight iterations in seconds: shows that everything runs, not that it learns."""
    base = fast(task, horizon)
    samples = 8 * base.imagination.horizon(horizon_of(task, horizon))
    return replace(
        base,
        updates=2,
        trajectories=2,
        least_steps=0,
        iterations=8,
        evaluation_episodes=2,
        model=smoke_model(base.model),
        imagination=replace(base.imagination, trajectories=8),
        policy=replace(
            base.policy, epochs=2, minibatch=min(60, samples), hidden=(16, 16)
        ),
        value=replace(
            base.value, epochs=2, minibatch=min(60, samples), hidden=(16, 16)
        ),
        tail=replace(base.tail, minibatch=min(60, samples), hidden=(16, 16)),
        exploration=replace(base.exploration, policies=2, trajectories=8),
        calibration=CalibrationConfig(),
    )


def meppo_paper(task: str, horizon: int | None) -> POMBUConfig:
    """MEPPO with the paper's values."""
    return _without_uncertainty(paper(task, horizon))


def meppo_fast(task: str, horizon: int | None) -> POMBUConfig:
    """MEPPO with what POMBU's `fast` uses."""
    return _without_uncertainty(fast(task, horizon))


def meppo_smoke(task: str, horizon: int | None) -> POMBUConfig:
    """MEPPO, tiny."""
    return _without_uncertainty(smoke(task, horizon))


def _without_uncertainty(config: POMBUConfig) -> POMBUConfig:
    return replace(
        config,
        alpha=0.0,
        minimum_kl=None,
        beta=0.0,
        kappa=0.0,
        tail=replace(config.tail, use=False),
        exploration=replace(config.exploration, policies=0),
    )
