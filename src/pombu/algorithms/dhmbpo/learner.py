"""DHMBPO: double-horizon model-based policy optimisation (Kubo et al., 2025).

One iteration collects real steps, fits the learned dynamics to all of them, and updates
actor and critics once per new step. Long rollouts without gradients (the distribution
horizon) find the states that the policy would visit; short ones with gradients (the
training horizon) start there, and both critics and actor learn from them.

DHMBPO-U has `kappa` or `bonus` above 0: sqrt(U), the uncertainty of Q by Algorithm 1
along the training rollout, is what the actor avoids and collection seeks.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from pombu.algorithms.base import Metrics
from pombu.algorithms.dhmbpo.config import DHMBPOConfig
from pombu.algorithms.dhmbpo.training import (
    REPORTED,
    distribution_rollout,
    training_rollout,
    uncertainty_along,
    update,
)
from pombu.algorithms.soft_actor_critic import (
    Imagination,
    Networks,
    Optimisers,
    Tail,
    init_tail,
    one_step_uncertainty,
)
from pombu.algorithms.soft_learner import SoftLearner, SoftState
from pombu.envs import Episode
from pombu.parallel import jit
from pombu.rng import Keys
from pombu.training.algorithm import Policy


class Learner(SoftLearner[DHMBPOConfig]):
    """DHMBPO over one task: `init` a state, then `iterate` it."""

    algorithm = "dhmbpo"

    def fresh_tail(self, seed: int) -> Tail | None:
        """An untrained U_psi, where the config asks for it."""
        if not self.config.uncertainty_tail:
            return None
        key, settings = Keys(seed, 0).jax("tail"), self.config.actor_critic
        return init_tail(key, self.task.observation_dim, settings)

    def explorer(self, state: SoftState) -> Policy:
        """The actor, with a bonus for uncertainty if asked, to collect with."""
        if not (self.config.bonus and int(state.updates)):
            return super().explorer(state)
        networks, imagination = self.networks(state), self.imagination(state)

        def act_with(
            observations: np.ndarray, deterministic: bool, key: PRNGKeyArray
        ) -> np.ndarray:
            chosen = explore(networks, imagination, observations, key, self.config)
            return np.asarray(chosen)

        return act_with

    def improve(
        self, state: SoftState, episodes: Sequence[Episode], keys: Keys
    ) -> tuple[SoftState, Metrics]:
        """As many updates as the steps ask for that were not learned from yet."""
        config = self.config
        new = int(state.real_steps - state.learned_steps)
        every = config.distribution.every
        blocks = round(config.updates_per_step * new / every)
        warmup = round(config.critic_updates / every)
        real, filled = self.real_states(episodes)
        networks, memory, report, uncertainty = improve(
            self.networks(state),
            self.optimisers(state),
            self.imagination(state),
            real,
            filled,
            int(state.updates),
            warmup,
            blocks,
            keys.jax("improve"),
            self.target_entropy,
            config,
        )
        distribution = config.distribution.starts * config.distribution.steps
        training = every * config.batch_size * config.training_steps
        state = eqx.tree_at(
            lambda s: (s.updates, s.learned_steps, s.imagined_steps),
            self.with_networks(state, networks, memory),
            (
                state.updates + (warmup + blocks) * every,
                state.real_steps,
                state.imagined_steps + (warmup + blocks) * (distribution + training),
            ),
        )
        metrics = dict(zip(REPORTED, np.asarray(report).tolist(), strict=True))
        return state, {
            **metrics,
            "sqrt_u": float(uncertainty),
            "q_lower": float(networks.bounds[0]),
            "q_upper": float(networks.bounds[1]),
        }

    def real_states(self, episodes: Sequence[Episode]) -> tuple[Array, int]:
        """Stored real states that were acted in, padded, and how many there are."""
        states = np.concatenate([episode.observations[:-1] for episode in episodes])
        return self.stored(states), len(states)


@partial(jit, static_argnames=("target_entropy", "config"))
def improve(
    networks: Networks,
    optimisers: Optimisers,
    imagination: Imagination,
    real: Float[Array, "r o"],
    filled: Int[Array, ""],
    done: Int[Array, ""],
    warmup: Int[Array, ""],
    blocks: Int[Array, ""],
    key: PRNGKeyArray,
    target_entropy: float,
    config: DHMBPOConfig,
) -> tuple[Networks, Optimisers, Float[Array, " m"], Float[Array, ""]]:
    """All updates of an iteration, as one compiled program.

    It is a loop over blocks, each with one distribution rollout and
    `distribution.every` updates. Their number is an argument, so nothing is compiled
    again as data grow or episodes get shorter.

    Args:
        networks: what is trained.
        optimisers: Adam's moments.
        imagination: where to imagine.
        real: stored real states, padded.
        filled: how many there are.
        done: updates in earlier iterations.
        warmup: blocks in which the critics learn alone, before the others.
        blocks: blocks in which all learn.
        key: of every draw.
        target_entropy: what the temperature aims at.
        config: horizons, rates, sizes.

    Returns:
        The networks, Adam's moments, means of `REPORTED`, and the mean of sqrt(U).
    """
    every, kept = config.distribution.every, config.distribution.kept
    rows = (config.distribution.steps + 1) * config.distribution.starts
    ring = jnp.zeros((kept * rows, real.shape[-1]))

    def block(number: Array, carry: Any) -> Any:
        networks, optimisers, ring, totals, uncertainty = carry
        roll_key, update_key, look_key = jax.random.split(
            jax.random.fold_in(key, number), 3
        )
        states = distribution_rollout(
            networks.policy, imagination, real, filled, roll_key, config
        )
        ring = jax.lax.dynamic_update_slice(
            ring, states.reshape(rows, -1), (number % kept * rows, 0)
        )
        full = jnp.minimum(number + 1, kept) * rows

        def one(carry: Any, index: Array) -> Any:
            networks, optimisers, totals = carry
            start_key, own = jax.random.split(jax.random.fold_in(update_key, index))
            starts = ring[jax.random.randint(start_key, (config.batch_size,), 0, full)]
            networks, optimisers, report = update(
                networks,
                optimisers,
                imagination,
                starts,
                done + number * every + index == 0,
                number >= warmup,
                own,
                target_entropy,
                config,
            )
            return (networks, optimisers, totals + report), None

        (networks, optimisers, totals), _ = jax.lax.scan(
            one, (networks, optimisers, totals), jnp.arange(every)
        )
        starts = states.reshape(rows, -1)[: config.batch_size]
        rollout = training_rollout(
            networks.policy, imagination, starts, look_key, config
        )
        found = uncertainty_along(rollout, networks, imagination, config)
        return networks, optimisers, ring, totals, uncertainty + jnp.mean(found)

    number = warmup + blocks
    networks, optimisers, _, totals, uncertainty = jax.lax.fori_loop(
        0,
        number,
        block,
        (
            networks,
            optimisers,
            ring,
            jnp.zeros(len(REPORTED)),
            jnp.zeros(()),
        ),
    )
    count = jnp.maximum(number, 1)
    return networks, optimisers, totals / (count * every), uncertainty / count


@partial(jit, static_argnames="config")
def explore(
    networks: Networks,
    imagination: Imagination,
    observations: Float[Array, "n o"],
    key: PRNGKeyArray,
    config: DHMBPOConfig,
) -> Float[Array, "n a"]:
    """Of several actions that the policy draws, the one of highest Q + bonus sqrt(U).

    U of an action is Algorithm 1's over one step: the members' disagreement about it,
    and the critics' variance where it leads on average.
    """
    count, (number, dim) = config.candidates, observations.shape
    states = jnp.broadcast_to(observations, (count, number, dim)).reshape(-1, dim)
    normal = imagination.normal(states)
    actions, _ = networks.policy.sample(normal, key)
    values = networks.critics.values(normal, actions, networks.bounds)
    uncertainty = one_step_uncertainty(
        networks, imagination, states, actions, config.gamma
    )
    score = jnp.mean(values, 0) + config.bonus * uncertainty
    best = jnp.argmax(score.reshape(count, number), 0)
    return actions.reshape(count, number, -1)[best, jnp.arange(number)]
