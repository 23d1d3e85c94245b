"""DHMBPO's presets.

`paper` has the published values, with the fit bounded in gradient steps.
"""

from dataclasses import replace

from pombu.algorithms.config import horizon_of, is_point, trajectories
from pombu.algorithms.dhmbpo.config import (
    DHMBPOConfig,
    DistributionConfig,
    SoftActorCriticConfig,
)
from pombu.dynamics.config import HomoscedasticModelConfig

_REAL_STEPS = 1000
_TOTAL = 200_000


def paper(task: str, horizon: int | None) -> DHMBPOConfig:
    """The published values, the same for every task."""
    length = horizon_of(task, horizon)
    number = trajectories(_REAL_STEPS, length)
    return DHMBPOConfig(
        trajectories=number,
        least_steps=number * length,
        iterations=max(_TOTAL // (number * length), 1),
    )


def fast(task: str, horizon: int | None) -> DHMBPOConfig:
    """Half the batch, three training steps, two layers for actor and critics.

    Departures from `paper` and why: learning starts after 3000 random steps, because
    real steps are what is scarce; the members keep their three layers and take 800
    gradient steps per 1000 new rows, because with two layers and 400 steps they
    underfit from 20,000 rows on (docs/learning.md); targets follow the critics twice as
    fast, because with few updates Q lags far behind the returns; Adam's moments are
    kept from one iteration to the next, because with new ones each iteration begins
    with steps in poor directions; the policy that acts is an average of the actor's
    latest weights, which falls less often than the actor; the actor avoids sqrt(U),
    because faster critics find the errors of the models sooner.
    """
    if is_point(task):
        return _fast_point(paper(task, horizon))
    return replace(
        paper(task, horizon),
        kappa=1.0,
        evaluation_episodes=5,
        learning_starts=3000,
        critic_updates=0,
        training_steps=3,
        batch_size=128,
        uncertainty_rows=8,
        draw="rollout",
        model=HomoscedasticModelConfig(learning_rate=6e-3, steps_per_new_row=0.8),
        actor_critic=SoftActorCriticConfig(
            hidden=(256, 256), tau=0.01, keep_moments=True, policy_average=0.002
        ),
    )


def _fast_point(base: DHMBPOConfig) -> DHMBPOConfig:
    return replace(
        base,
        trajectories=10,
        least_steps=0,
        iterations=20,
        evaluation_episodes=20,
        learning_starts=600,
        critic_updates=0,
        training_steps=3,
        batch_size=64,
        uncertainty_rows=8,
        draw="rollout",
        gamma=0.95,
        distribution=DistributionConfig(steps=5, starts=64, every=10),
        model=HomoscedasticModelConfig(members=4, hidden=(64, 64), batch_size=64),
        actor_critic=SoftActorCriticConfig(
            critics=3, hidden=(64, 64), learning_rate=1e-3
        ),
    )


def smoke(task: str, horizon: int | None) -> DHMBPOConfig:
    """Eight iterations in seconds: shows that everything runs, not that it learns."""
    return replace(
        fast(task, horizon),
        trajectories=2,
        least_steps=0,
        iterations=8,
        evaluation_episodes=2,
        updates_per_step=0.1,
        learning_starts=horizon_of(task, horizon),
        training_steps=2,
        batch_size=12,
        uncertainty_rows=4,
        distribution=DistributionConfig(steps=3, starts=12, every=2, kept=3),
        model=HomoscedasticModelConfig(
            members=3,
            hidden=(16, 16),
            batch_size=16,
            min_steps=10,
            max_steps=20,
            validation_rows=64,
        ),
        actor_critic=SoftActorCriticConfig(critics=3, hidden=(16, 16)),
    )
