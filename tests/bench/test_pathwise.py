"""DHMBPO's update in PyTorch is the engine's: same weights, same draws, same result."""

from collections.abc import Iterator
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pombu.algorithms.dhmbpo.learner import Learner
from pombu.algorithms.dhmbpo.training import update
from pombu.algorithms.registry import preset
from pombu.bench import algorithms
from pombu.bench.workload import TASK, random_episodes
from pombu.envs import load

torch = pytest.importorskip("torch", reason="needs the baselines extra")

from pombu.bench import pytorch_pathwise  # noqa: E402


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Threads that wait for one another take forever where other tests run beside."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_one_update_of_all_networks() -> None:
    config = replace(preset("dhmbpo", "smoke", TASK), kappa=0.0, draw="rollout")
    learner = Learner(load(TASK), config)
    state = algorithms.dhmbpo_state(learner, random_episodes(learner.task, 400))
    networks, world = learner.networks(state), learner.imagination(state)
    # Critics begin as constants; here they are to differ.
    moved = jax.tree.map(
        lambda leaf: leaf + 0.1 * jax.random.normal(jax.random.key(1), leaf.shape),
        networks.critics,
    )
    networks = replace_critics(networks, moved)
    real, _ = learner.real_states(random_episodes(learner.task, 400))
    starts, key = real[: config.batch_size], jax.random.key(7)
    ours, _, report = update(
        networks,
        learner.optimisers(state),
        world,
        starts,
        jnp.asarray(True),
        jnp.asarray(True),
        key,
        learner.target_entropy,
        config,
    )
    reference = pytorch_pathwise.PathwiseUpdate(
        networks, world, learner.target_entropy, config
    )
    theirs = reference
    reference(*draws(key, starts, learner), True)
    assert float(report[-1]) == 0.0, "no rollout ended"
    np.testing.assert_allclose(theirs.bounds.numpy(), ours.bounds, rtol=1e-4)
    for name, found, due in (
        ("critics", theirs.critics, ours.critics.layers),
        ("targets", theirs.targets, ours.targets.layers),
        ("actor", theirs.actor, ours.policy.network),
    ):
        for weight, expected in zip(found.weights, due.weights, strict=True):
            given = weight.detach().numpy()
            np.testing.assert_allclose(given, expected, atol=2e-5, err_msg=name)
    assert np.isclose(float(theirs.log_temperature.detach()), ours.log_temperature)


def replace_critics(networks, critics):  # type: ignore[no-untyped-def]
    """The same networks with other critics and targets."""
    fields = (networks.policy, networks.average, critics, critics)
    return type(networks)(*fields, networks.log_temperature, networks.bounds)


def draws(key, starts, learner):  # type: ignore[no-untyped-def]
    """What the engine's update draws from its key."""
    config, task = learner.config, learner.task
    roll_key, pick_key = jax.random.split(key)
    batch, members = config.batch_size, config.model.members
    actions, states = [], []
    for number in range(config.training_steps + 1):
        act, move, _ = jax.random.split(jax.random.fold_in(roll_key, number), 3)
        actions.append(jax.random.normal(act, (batch, task.action_dim)))
        shape = (members, batch // members, task.frame_dim)
        states.append(jax.random.normal(move, shape))
    order = jax.random.permutation(pick_key, config.actor_critic.critics)
    judges = np.array(order[: config.actor_critic.subset])
    drawn = (starts, jnp.stack(actions), jnp.stack(states[:-1]))
    return *(torch.from_numpy(np.array(x)) for x in drawn), torch.from_numpy(judges)


def test_operations_by_hand() -> None:
    task = load(TASK)
    config = preset("dhmbpo", "smoke", TASK)
    o, a = task.observation_dim, task.action_dim
    member = (o + a) * 16 + 16 * 16 + 16 * o
    count = algorithms.dhmbpo_operations(task, config)
    assert count["fit"] == 6 * member - 2 * (o + a) * 16
    actor = o * 16 + 16 * 16 + 16 * 2 * a
    assert count["distribution"] == 12 * 3 * 2 * (member + actor)
