"""The PyTorch reference does the engine's work: same weights, same numbers."""

from collections.abc import Iterator
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sizes import small

from pombu.bench.workload import Workload, operations, paper_workload
from pombu.data import build_dataset, regression
from pombu.dynamics.fit import fit, held_out, row_batches
from pombu.optim.ppo import improve_policy, improve_value, shuffles
from pombu.rollout.imagine import imagine

torch = pytest.importorskip("torch", reason="needs the baselines extra")

from pombu.bench import pytorch  # noqa: E402


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Threads that wait for one another take forever where other tests run beside."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def work() -> Workload:
    return paper_workload(stored=600, fit_steps=10, change=small)


def test_no_trajectory_of_the_workload_runs_away(work: Workload) -> None:
    assert float(work.imagine().masked) == 0
    assert float(work.batch.weight.min()) == 1


def test_imagination(work: Workload) -> None:
    rules = replace(work.rules, horizon=25)
    state, key = work.state, work.keys.jax("imagine")
    ours = imagine(
        state.policy, state.value, work.dynamics, rules, work.starts, work.members, key
    )
    noise, chosen = draws(key, rules.horizon, len(work.starts), 6, work.members)
    theirs = pytorch.imagine(
        pytorch.TorchPolicy(state.policy),
        pytorch.network(state.value),
        pytorch.TorchDynamics.of(work.dynamics),
        rules,
        pytorch.tensor(work.starts),
        pytorch.tensor(noise),
        pytorch.tensor(chosen).long(),
    )
    for name, field in theirs.items():
        np.testing.assert_allclose(
            field.numpy(), getattr(ours, name), rtol=2e-3, atol=2e-4, err_msg=name
        )


def draws(key, horizon, number, actions, weights):
    """What the engine draws, step by step."""
    noise, chosen = [], []
    for step in jax.random.split(key, horizon):
        action_key, member_key = jax.random.split(step)
        noise.append(jax.random.normal(action_key, (number, actions)))
        chosen.append(
            jax.random.categorical(member_key, jnp.log(weights), shape=(number,))
        )
    return np.stack(noise), np.stack(chosen)


def test_value_update(work: Workload) -> None:
    config, state, seed = work.config.value, work.state, (1, 2)
    ours, _, _ = improve_value(
        state.value, state.value_optimiser, work.batch, seed, 1e-4, config
    )
    theirs = pytorch.network(state.value)
    orders = shuffles(seed, config.epochs, len(work.batch.weight))
    pytorch.improve_value(
        theirs, pytorch.Samples.of(work.batch), pytorch.tensor(orders).long(), config
    )
    assert_moved_alike(state.value, ours, theirs)


def test_policy_update(work: Workload) -> None:
    config, state, seed = work.config.policy, work.state, (3, 4)
    ours, _, _ = improve_policy(
        state.policy, state.policy_optimiser, work.batch, seed, 1e-4, 0.5, config
    )
    theirs = pytorch.TorchPolicy(state.policy)
    orders = shuffles(seed, config.epochs, len(work.batch.weight))
    samples = pytorch.Samples.of(work.batch)
    pytorch.improve_policy(theirs, samples, pytorch.tensor(orders).long(), 0.5, config)
    assert_moved_alike(state.policy.mean, ours.mean, theirs.mean)
    np.testing.assert_allclose(
        theirs.log_std.detach().numpy(), ours.log_std, rtol=0, atol=1e-6
    )


def assert_moved_alike(before, after, module) -> None:
    linears = [layer for layer in module if isinstance(layer, torch.nn.Linear)]
    for weight, old, layer in zip(after.weights, before.weights, linears, strict=True):
        moved = layer.weight.detach().numpy().T - np.asarray(old)
        assert np.abs(moved).max() > 1e-4
        np.testing.assert_allclose(moved, weight - old, rtol=0, atol=2e-6)


def test_fit(work: Workload) -> None:
    config, steps, interval = work.config.model, work.fit_steps, 2
    ensemble, seed = work.state.ensemble, (5, 6)
    dataset = build_dataset(work.episodes, config.members, 0.2, 0, 0)
    inputs, targets = regression(dataset, work.state.experience, False)
    ours, report = fit(
        ensemble,
        inputs,
        targets,
        dataset.validation,
        config,
        len(inputs),
        seed,
        work.learner.workers,
    )
    rows, judges = rows_of(dataset.validation, seed, steps, config)
    theirs = pytorch.TorchEnsemble(ensemble)
    losses = pytorch.fit_ensemble(
        theirs,
        pytorch.tensor(inputs),
        pytorch.tensor(targets),
        pytorch.tensor(rows).long(),
        pytorch.tensor(judges).long(),
        config,
        interval,
    )
    np.testing.assert_allclose(losses.numpy(), report.validation_loss, rtol=1e-4)
    for layer, direction, gain in zip(
        ours.layers, theirs.directions, theirs.gains, strict=True
    ):
        np.testing.assert_allclose(
            direction.detach().numpy(), layer.direction, rtol=0, atol=1e-5
        )
        np.testing.assert_allclose(gain.detach().numpy(), layer.gain, rtol=0, atol=1e-5)


def rows_of(validation, seed, steps, config):
    """Which rows the engine's members learn from and are judged by."""
    rows, judges = [], []
    for member, mask in enumerate(validation):
        rng = np.random.default_rng([*seed, member])
        stream = row_batches(rng, np.flatnonzero(~mask), config.batch_size)
        drawn, count = held_out(rng, np.flatnonzero(mask), config.validation_rows)
        judges.append(drawn[:count])
        rows.append(np.stack([next(stream) for _ in range(steps)]))
    return np.stack(rows, 1), np.stack(judges)


def test_each_piece_runs_with_the_threads_that_suit_it(
    work: Workload, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pombu.bench.workload.usable_cores", lambda: 1)
    pieces = pytorch.pieces(work)
    assert set(pieces) == {"imagination", "fit", "update"}
    for piece in pieces.values():
        piece()


def test_operations_by_hand(work: Workload) -> None:
    counted = operations(work.learner.task, work.config)
    member = 23 * 16 + 16 * 16 + 16 * 17
    policy, value = 17 * 8 + 8 * 8 + 8 * 6, 17 * 8 + 8 * 8 + 8
    assert counted.imagined_step == 2 * (3 * (member + value) + policy)
    assert counted.fitted_row == 6 * member - 2 * 23 * 16
    assert counted.updated_sample == 6 * (policy + value) - 2 * (2 * 17 * 8)
