"""Acting in the real environment: exploration policies side by side, and evaluation."""

from collections.abc import Callable
from typing import TypeVar

import jax
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from pombu.data import Normaliser
from pombu.envs import Episode, Task, collect, collect_rounds
from pombu.nn import GaussianPolicy, StochasticPolicy
from pombu.rng import Keys
from pombu.training.algorithm import Policy

Act = Callable[[np.ndarray, int], np.ndarray]
P = TypeVar("P", bound=StochasticPolicy)


@jax.jit
def _stochastic(
    policies: StochasticPolicy,
    normaliser: Normaliser,
    observations: Float[Array, "P n o"],
    key: PRNGKeyArray,
    step: Int[Array, ""],
) -> Float[Array, "P n a"]:
    keys = jax.random.split(jax.random.fold_in(key, step), observations.shape[0])
    normal = normaliser.normalise(observations)

    def draw(policy: StochasticPolicy, seen: Array, key: PRNGKeyArray) -> Array:
        return policy.sample(seen, key)[0]

    actions: Array = jax.vmap(draw)(policies, normal, keys)
    return actions


@jax.jit
def _deterministic(
    policy: GaussianPolicy, normaliser: Normaliser, observations: Float[Array, "n o"]
) -> Float[Array, "n a"]:
    return policy.mean(normaliser.normalise(observations))


def act_with(
    policies: tuple[StochasticPolicy, Normaliser], number: int, key: PRNGKeyArray
) -> Act:
    """Act with a stack of P policies in `number` episodes, each in every P-th."""
    stack, normaliser = policies
    count = jax.tree.leaves(stack)[0].shape[0]
    rounds = -(-number // count)

    def act(observations: np.ndarray, step: int) -> np.ndarray:
        dim = observations.shape[1]
        padded = np.zeros((rounds * count, dim), np.float32)
        padded[:number] = observations
        by_policy = padded.reshape(rounds, count, dim).swapaxes(0, 1)
        actions = np.asarray(_stochastic(stack, normaliser, by_policy, key, step))
        return actions.swapaxes(0, 1).reshape(rounds * count, -1)[:number]

    return act


def act_alone(
    policy: StochasticPolicy, normaliser: Normaliser, number: int, key: PRNGKeyArray
) -> Act:
    """Act with one stochastic policy in `number` episodes."""
    return act_with(alone(policy, normaliser), number, key)


def alone(policy: P, normaliser: Normaliser) -> tuple[P, Normaliser]:
    """One policy as a stack of policies."""
    return jax.tree.map(lambda x: x[None], policy), normaliser


def gather(
    task: Task,
    policies: tuple[StochasticPolicy, Normaliser],
    number: int,
    least_steps: int,
    keys: Keys,
) -> list[Episode]:
    """Real episodes of a stack of policies: `number`, and more while they are short."""
    stack, normaliser = policies
    count = jax.tree.leaves(stack)[0].shape[0]

    def round_of(index: int) -> tuple[Act, list[int]]:
        # Where a round has fewer episodes than there are policies, they take turns.
        first = index * number % count
        turned = (
            jax.tree.map(lambda x: np.roll(x, -first, 0), stack) if first else stack
        )
        part, seeds = round_keys(index, number, keys)
        act = act_with((turned, normaliser), number, keys.jax("collect", *part))
        return act, seeds

    return collect_rounds(task, round_of, least_steps)


def round_keys(
    index: int, number: int, keys: Keys
) -> tuple[tuple[int, ...], list[int]]:
    """What tells a round's random streams apart, and the seeds of its episodes."""
    if not index:
        return (), keys.episodes("collect", number)
    return (index,), keys.episodes(f"collect {index}", number)


def act_randomly(number: int, actions: int, keys: Keys) -> Act:
    """Uniform random actions in policy space, for as many episodes side by side."""
    rng = np.random.default_rng(keys.numpy("collect"))
    return lambda *_: rng.uniform(-1, 1, (number, actions))


def evaluate(
    task: Task, policy: Policy, episodes: int, keys: Keys
) -> tuple[dict[str, float], list[Episode]]:
    """Returns of the stochastic and deterministic policy; the former's episodes too.

    Without episodes nothing is measured.
    """
    if not episodes:
        return {}, []
    key = keys.jax("evaluate")

    def act(observations: np.ndarray, step: int) -> np.ndarray:
        own = jax.random.fold_in(key, step)
        first = policy(observations[:episodes], False, own)
        second = policy(observations[episodes:], True, own)
        return np.concatenate([np.asarray(first), np.asarray(second)])

    real = collect(task, act, keys.episodes("evaluate", 2 * episodes))
    returns = np.array([episode.rewards.sum() for episode in real])
    return {
        "return_real": float(returns[:episodes].mean()),
        "return_real_std": float(returns[:episodes].std()),
        "return_deterministic": float(returns[episodes:].mean()),
        "return_deterministic_std": float(returns[episodes:].std()),
    }, real[:episodes]


def policy_of(policy: GaussianPolicy, normaliser: Normaliser) -> Policy:
    """The policy in the form in which runs are evaluated and exported."""
    stack = jax.tree.map(lambda x: x[None], policy)

    def act(
        observations: np.ndarray, deterministic: bool, key: PRNGKeyArray
    ) -> np.ndarray:
        if deterministic:
            return np.asarray(_deterministic(policy, normaliser, observations))
        drawn = _stochastic(stack, normaliser, observations[None], key, 0)
        return np.asarray(drawn[0])

    return act
