"""POMBU's presets: the tables and the text of the paper's Appendix D as values.

`paper` is completed from the published code only where the paper is silent (the
defaults of `pombu.config`).
"""

from dataclasses import dataclass, replace

from pombu.config import (
    ExplorationConfig,
    ImaginationConfig,
    ModelConfig,
    PolicyConfig,
    POMBUConfig,
    ReturnConfig,
    ValueConfig,
)
from pombu.presets.sizes import (
    FIRST_LOG_STD,
    fast_model,
    horizon_of,
    is_foreign,
    is_point,
    smoke_model,
    trajectories,
)

LONG_HORIZON = 1000
"""From this horizon on the paper's table for long tasks holds."""


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


def fast(task: str, horizon: int | None) -> POMBUConfig:
    """The paper's schedule with cheaper models, larger steps and bounded fits.

    Departures and why: members half as wide, which cost a quarter, with fits as
    `fast_model` says; half the noise at first (`FIRST_LOG_STD`); larger rates and
    minibatches for policy and value, because the conservative penalty, not the rate,
    limits the step; at most 200 virtual trajectories per update, and half of that for
    exploration (fewer for the policy itself make its advantages noisy, and its entropy
    falls too soon); raw rewards are cut at 10 instead of 5, which would cap the return
    at 1000, while a few imagined runaways could otherwise spoil the value function;
    alpha gives way where the penalty would keep the policy from moving at all.
    """
    if is_point(task):
        return _fast_point()
    if is_foreign(task):
        return _fast_foreign(horizon_of(task, horizon))
    base = paper(task, horizon)
    virtual = min(base.imagination.trajectories, 200)
    first, last = 3e-4, 3e-5
    return replace(
        base,
        minimum_kl=1e-3,
        model=fast_model(len(base.model.hidden), afresh_every=_AFRESH.get(task, 0)),
        imagination=replace(base.imagination, trajectories=virtual),
        policy=replace(
            base.policy,
            minibatch=2000,
            learning_rate=first,
            final_learning_rate=last,
            initial_log_std=FIRST_LOG_STD,
        ),
        value=replace(
            base.value, minibatch=2000, learning_rate=first, final_learning_rate=last
        ),
        exploration=replace(base.exploration, trajectories=virtual // 2),
        returns=ReturnConfig(reward_clip=10.0),
    )


def _fast_point() -> POMBUConfig:
    return POMBUConfig(
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
        imagination=ImaginationConfig(trajectories=100),
        policy=PolicyConfig(
            learning_rate=1e-3,
            final_learning_rate=1e-4,
            reset_std_iterations=0,
            hidden=(32, 32),
        ),
        value=ValueConfig(
            learning_rate=1e-3, final_learning_rate=1e-4, hidden=(32, 32)
        ),
        exploration=ExplorationConfig(policies=5, trajectories=100),
        returns=ReturnConfig(reward_clip=None),
    )


def _fast_foreign(horizon: int) -> POMBUConfig:
    """General values for an environment of the user's.

    Departures from the other tasks' `fast` and why: about 1000 real steps per
    iteration, also where episodes end early, because the first thousands decide in a
    small task; smaller networks and more epochs per fit, because those thousands are
    few rows; virtual trajectories of at most 100 steps, half of them from stored real
    states, with V for what lies beyond (a time limit is no end), because model errors
    add up and the end of a long episode would hardly be imagined at first; half as
    many samples and epochs per update with larger steps, which costs a quarter and
    suits smaller networks' tasks; the log-std is never set back, because a fifth of
    the planned iterations would be spent on that.
    """
    number = trajectories(1000, horizon)
    steps = min(horizon, 100)
    virtual = trajectories(10_000, steps, 2)
    first, last = 1e-3, 1e-4
    return POMBUConfig(
        trajectories=number,
        least_steps=min(1000, number * horizon),
        iterations=30,
        minimum_kl=1e-3,
        evaluation_episodes=10,
        model=replace(
            fast_model(), hidden=(200, 200), validation_rows=2000, max_epochs=100
        ),
        imagination=ImaginationConfig(
            trajectories=virtual, steps=steps, real_starts=0.5
        ),
        policy=PolicyConfig(
            epochs=5,
            minibatch=1000,
            learning_rate=first,
            final_learning_rate=last,
            initial_log_std=FIRST_LOG_STD,
            reset_std_iterations=0,
        ),
        value=ValueConfig(
            epochs=5, minibatch=1000, learning_rate=first, final_learning_rate=last
        ),
        exploration=ExplorationConfig(
            policies=min(number, 5), trajectories=virtual // 2
        ),
        returns=ReturnConfig(reward_clip=None, lam=0.95, bootstrap=True),
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
        exploration=replace(base.exploration, policies=2, trajectories=8),
    )
