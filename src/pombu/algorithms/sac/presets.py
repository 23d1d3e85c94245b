"""Presets of SAC, DroQ, TQC and CrossQ.

`paper` of SAC has the values of the paper's own baseline, that of the others the
published ones. `fast` of SAC and TQC is what the authors of Stable-Baselines3 recommend
for MuJoCo tasks; that of DroQ and CrossQ does with less work per real step.
"""

from dataclasses import replace
from typing import TypeVar

from pombu.algorithms.config import horizon_of, is_point, trajectories
from pombu.algorithms.sac.config import (
    CrossQConfig,
    DroQConfig,
    OffPolicyConfig,
    SACConfig,
    TQCConfig,
)

C = TypeVar("C", bound=OffPolicyConfig)
V = TypeVar("V")

_STEPS = 1000
"""Real steps of an iteration."""
_ENTROPIES: dict[str, float | None] = {
    "HalfCheetah": -3.0,
    "Walker2d": -3.0,
    "Ant": -4.0,
    "Hopper": -1.0,
    "Humanoid": -2.0,
}
"""Target entropies of DroQ, which are MBPO's."""
_DROPPED = {"HalfCheetah": 0, "Hopper": 5}
"""Highest quantiles that TQC drops per critic; elsewhere 2."""


def paper(task: str, horizon: int | None) -> SACConfig:
    """Alternate 1000 real steps and 1000 gradient steps."""
    number = trajectories(_STEPS, horizon_of(task, horizon))
    return SACConfig(trajectories=number, bout=number)


def fast(task: str, horizon: int | None) -> SACConfig:
    """Train after every trajectory, once 10,000 random steps were taken."""
    config = _each(SACConfig(), task, horizon)
    if is_point(task):
        return _point(config)
    return replace(config, learning_starts=10_000, start="random")


def smoke(task: str, horizon: int | None) -> SACConfig:
    """Eight iterations in seconds: shows that everything runs, not that it learns."""
    return _tiny(fast(task, horizon), task, horizon)


def droq_paper(task: str, horizon: int | None) -> DroQConfig:
    """20 gradient steps per real step, with MBPO's target entropies."""
    config = _each(DroQConfig(), task, horizon)
    return replace(config, target_entropy=_of(task, _ENTROPIES, None))


def droq_fast(task: str, horizon: int | None) -> DroQConfig:
    """Five gradient steps per real step: a quarter of the work."""
    config = replace(droq_paper(task, horizon), updates_per_step=5.0, policy_delay=5)
    return _point(config) if is_point(task) else config


def droq_smoke(task: str, horizon: int | None) -> DroQConfig:
    """Eight iterations in seconds."""
    return replace(_tiny(droq_fast(task, horizon), task, horizon), policy_delay=2)


def tqc_paper(task: str, horizon: int | None) -> TQCConfig:
    """The published number of dropped quantiles, where there is one for the task."""
    config = _each(TQCConfig(), task, horizon)
    return replace(config, dropped_quantiles=_of(task, _DROPPED, 2))


def tqc_fast(task: str, horizon: int | None) -> TQCConfig:
    """Critics of SAC's size, after 10,000 random steps."""
    config = replace(tqc_paper(task, horizon), critic_hidden=(256, 256))
    if is_point(task):
        return replace(_point(config), critic_hidden=(64, 64))
    return replace(config, learning_starts=10_000, start="random")


def tqc_smoke(task: str, horizon: int | None) -> TQCConfig:
    """Eight iterations in seconds."""
    config = _tiny(tqc_fast(task, horizon), task, horizon)
    return replace(config, critic_hidden=(16, 16), quantiles=5, dropped_quantiles=1)


def crossq_paper(task: str, horizon: int | None) -> CrossQConfig:
    """Critics of 2048 units."""
    return _each(CrossQConfig(), task, horizon)


def crossq_fast(task: str, horizon: int | None) -> CrossQConfig:
    """Critics of 256 units, which the authors found to work, if less well."""
    config = replace(crossq_paper(task, horizon), critic_hidden=(256, 256))
    if is_point(task):
        # An actor that trains as often as the critics gets there in half the steps.
        return replace(_point(config), critic_hidden=(64, 64), policy_delay=1)
    return config


def crossq_smoke(task: str, horizon: int | None) -> CrossQConfig:
    """Eight iterations in seconds."""
    config = _tiny(crossq_fast(task, horizon), task, horizon)
    return replace(config, critic_hidden=(16, 16), policy_delay=3)


def _each(config: C, task: str, horizon: int | None) -> C:
    """Iterations of about 1000 steps, with training after every trajectory."""
    return replace(
        config,
        trajectories=trajectories(_STEPS, horizon_of(task, horizon)),
        bout=1,
        gamma=0.9999 if task == "Swimmer" else 0.99,
    )


def _of(task: str, values: dict[str, V], otherwise: V) -> V:
    """The value of a task, by a part of its name."""
    return next((v for name, v in values.items() if name in task), otherwise)


def _point(config: C) -> C:
    """What is enough for the point tasks."""
    return replace(
        config,
        trajectories=10,
        iterations=20,
        bout=2,
        learning_starts=300,
        start="random",
        hidden=(64, 64),
        learning_rate=1e-3,
        capacity=100_000,
        gamma=0.95,
    )


def _tiny(config: C, task: str, horizon: int | None) -> C:
    """What `smoke` changes."""
    return replace(
        config,
        trajectories=2,
        iterations=8,
        bout=1,
        evaluation_episodes=2,
        updates_per_step=0.1,
        learning_starts=horizon_of(task, horizon),
        hidden=(16, 16),
        batch_size=32,
        capacity=10_000,
    )
