"""Every algorithm with the familiar face of an `Agent`."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pombu.agent import Agent, as_rows
from pombu.algorithms.pombu import Learner, State
from pombu.errors import UsageError
from pombu.estimates import q_uncertainty


class _WithEnsemble(Agent):
    """Agents whose ensemble tells how uncertain a Q-value is."""

    learner: Learner
    state: State

    def q_uncertainty(
        self, observation: Any, action: Any, rollouts: int = 20
    ) -> np.ndarray:
        """sqrt(U) of Q(s, a) under the current policy, in units of the task's reward.

        It is an array with one number per pair, also where there is only one. Before
        anything was learned it tells how far untrained networks lie apart.

        Args:
            observation: one observation or a batch.
            action: in the environment's own units; clipped to its bounds.
            rollouts: imagined trajectories per pair whose variances are averaged.
        """
        task = self.learner.task
        states = as_rows("observation", observation, task.observation_dim)
        actions = as_rows("action", action, task.action_dim)
        if len(states) != len(actions) or rollouts < 1:
            raise UsageError(
                f"There are {len(states)} observations, {len(actions)} actions and "
                f"{rollouts} rollouts: give one action per observation and at least "
                "one rollout."
            )
        if self.config.model.kind != "ensemble":
            raise UsageError(
                "The agent imagines in the simulator, so it has no learned ensemble to "
                "be uncertain: train it with model.kind = ensemble."
            )
        uncertainty = q_uncertainty(
            self.state.policy,
            self.state.value,
            self.learner.world(self.state),
            replace(self.learner.rules, horizon=task.horizon),
            jnp.asarray(states),
            jnp.asarray(task.action_box.clip(actions)),
            rollouts,
            jax.random.key(self.seed),
        )
        return np.asarray(uncertainty)


class POMBU(_WithEnsemble):
    """Policy Optimization with Model-Based Uncertainty."""

    algorithm = "pombu"


class MEPPO(_WithEnsemble):
    """Model-ensemble PPO: POMBU without its uncertainty."""

    algorithm = "meppo"


class METRPO(Agent):
    """Model-Ensemble Trust-Region Policy Optimization."""

    algorithm = "metrpo"


class SLBO(Agent):
    """Stochastic Lower Bound Optimization."""

    algorithm = "slbo"


class MBMPO(Agent):
    """Model-Based Meta-Policy Optimization; acts by the policy before adaptation."""

    algorithm = "mbmpo"


class PETS(Agent):
    """Probabilistic Ensembles with Trajectory Sampling: every action is planned.

    `predict` has no plan to go on from, so it searches from the middle of the box.
    """

    algorithm = "pets"


class STEVE(Agent):
    """Stochastic Ensemble Value Expansion."""

    algorithm = "steve"


class SAC(Agent):
    """Soft actor-critic, by Stable-Baselines3."""

    algorithm = "sac"


class PPO(Agent):
    """Proximal policy optimisation, by Stable-Baselines3."""

    algorithm = "ppo"
