"""PPO's presets.

`paper` has the values of the paper's own baseline; `fast` those that the authors of
Stable-Baselines3 found by tuning on MuJoCo tasks.
"""

from dataclasses import replace

from pombu.algorithms.config import horizon_of, is_point, trajectories
from pombu.algorithms.ppo.config import PPOConfig


def paper(task: str, horizon: int | None) -> PPOConfig:
    """Batches of 2000 steps."""
    return PPOConfig(trajectories=trajectories(2000, horizon_of(task, horizon)))


def fast(task: str, horizon: int | None) -> PPOConfig:
    """The tuned values of HalfCheetah, Walker2d and Swimmer; for Ant there are none."""
    if is_point(task):
        return _fast_point()
    length = horizon_of(task, horizon)
    number = trajectories(600, length)
    tuned = PPOConfig(
        trajectories=number,
        iterations=max(200_000 // (number * length), 1),
        hidden=(256, 256),
        activation="relu",
        orthogonal=False,
        log_std=-2.0,
        learning_rate=2.0633e-5,
        final_learning_rate=2.0633e-5,
        epochs=20,
        minibatch=64,
        clip=0.1,
        gamma=0.98,
        lam=0.92,
        entropy_weight=0.000401762,
        value_weight=0.58096,
        gradient_clip=0.8,
        scale_rewards=True,
    )
    if task == "Walker2d":
        return replace(
            _library_networks(tuned),
            learning_rate=5.05041e-5,
            final_learning_rate=5.05041e-5,
            minibatch=32,
            gamma=0.99,
            lam=0.95,
            entropy_weight=0.000585045,
            value_weight=0.871923,
            gradient_clip=1.0,
        )
    if task == "Swimmer":
        number = trajectories(4096, length)
        return replace(
            _library_defaults(tuned),
            trajectories=number,
            iterations=max(200_000 // (number * length), 1),
            minibatch=256,
            learning_rate=6e-4,
            final_learning_rate=6e-4,
            gamma=0.9999,
            lam=0.98,
        )
    if task == "Ant":
        number = trajectories(2048, length)
        return replace(
            _library_defaults(tuned),
            trajectories=number,
            iterations=max(200_000 // (number * length), 1),
        )
    return tuned


def _library_networks(config: PPOConfig) -> PPOConfig:
    return replace(
        config, hidden=(64, 64), activation="tanh", orthogonal=True, log_std=0.0
    )


def _library_defaults(config: PPOConfig) -> PPOConfig:
    """Stable-Baselines3's defaults, where nothing was tuned."""
    return replace(
        _library_networks(config),
        learning_rate=3e-4,
        final_learning_rate=3e-4,
        epochs=10,
        minibatch=64,
        clip=0.2,
        gamma=0.99,
        lam=0.95,
        entropy_weight=0.0,
        value_weight=0.5,
        gradient_clip=0.5,
    )


def _fast_point() -> PPOConfig:
    return PPOConfig(
        trajectories=50,
        iterations=60,
        learning_rate=1e-3,
        final_learning_rate=1e-4,
        minibatch=250,
        clip=0.2,
        gamma=0.95,
        gradient_clip=0.5,
        scale_rewards=True,
    )


def smoke(task: str, horizon: int | None) -> PPOConfig:
    """Eight iterations in seconds: shows that everything runs, not that it learns."""
    return replace(
        fast(task, horizon),
        trajectories=2,
        iterations=8,
        evaluation_episodes=2,
        epochs=2,
        minibatch=60,
        hidden=(16, 16),
    )
