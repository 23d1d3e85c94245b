"""Fitting the ensemble: what it learns, when members stop, and that nothing else
changes the result."""

from importlib import import_module
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference import doubles, fit_member
from tiny import same

from pombu.dynamics.config import GaussianModelConfig, ModelConfig
from pombu.dynamics.ensemble import (
    Ensemble,
    Samples,
    SquaredError,
    init_ensemble,
    materialise,
    predict,
)
from pombu.dynamics.fit import FitPlan, begin_afresh, fit, fit_members, row_batches
from pombu.dynamics.gaussian import Likelihood, init_gaussian, predict_gaussian
from pombu.nn import Descent, adam, gradient_steps
from pombu.parallel import Workers

module = import_module("pombu.dynamics.fit")

CONFIG = ModelConfig(
    members=3,
    hidden=(12,),
    learning_rate=1e-2,
    batch_size=16,
    validation_rows=20,
    validate_every=1,
    patience=5,
    max_epochs=12,
)


def change(**fields: Any) -> ModelConfig:
    return ModelConfig(**{**CONFIG.__dict__, **fields})


def make_rows(number: int) -> tuple[Any, Any, Any]:
    """A linear map of two inputs, and a split of its rows."""
    draw = np.random.default_rng(1)
    inputs = draw.normal(size=(number, 2)).astype(np.float32)
    targets = inputs @ np.array([[1.0], [-0.5]], np.float32)
    return inputs, targets, draw.random((3, number)) < 0.2


def start(config: ModelConfig = CONFIG) -> Ensemble:
    return init_ensemble(jax.random.key(0), config.members, 2, 1, config.hidden)


def do_fit(
    config: ModelConfig = CONFIG, rows: int = 60, capacity: int = 160, workers: int = 2
) -> Any:
    inputs, targets, validation = make_rows(rows)
    pool = Workers(workers)
    answer = fit(
        start(config), inputs, targets, validation, config, capacity, (4, 2), pool
    )
    pool.close()
    return answer


def test_learns_a_linear_map() -> None:
    ensemble, report = do_fit(change(max_epochs=80, patience=80), rows=160)
    x = jnp.array([[0.5, -1.0], [-1.0, 0.3], [1.5, 1.0]])
    everyone = jnp.broadcast_to(x, (3, 3, 2))
    predicted = predict(materialise(ensemble), everyone)
    truth = np.asarray(x) @ np.array([[1.0], [-0.5]])
    np.testing.assert_allclose(predicted, np.broadcast_to(truth, (3, 3, 1)), atol=0.1)
    assert (report.validation_loss < 2e-3).all()


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"validate_every": 3, "patience": 4},
        {"validate_every_steps": 2, "max_steps": 7},
        {"final_learning_rate": 1e-3, "max_epochs": 15, "patience": 15},
    ],
)
def test_equals_a_plain_loop(fields: dict[str, Any]) -> None:
    """The same batches, validations and stops; float32 against float64."""
    config = change(**fields)
    ensemble, report = do_fit(config)
    inputs, targets, validation = make_rows(60)
    for k in range(3):
        member = [leaf[k] for leaf in doubles(start())]
        expected, loss = fit_member(
            member, inputs, targets, validation[k], config, [4, 2, k]
        )
        for one, two in zip(doubles(ensemble), expected, strict=True):
            np.testing.assert_allclose(one[k], two, atol=1e-4)
        assert report.validation_loss[k] == pytest.approx(loss, rel=1e-3)


class Script:
    """Stands in for training and validation: a member's only weight counts its steps,
    and its validation losses are read from a list."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, losses: list[list[float]]):
        self.losses = losses
        self.calls: list[tuple[int, int]] = []
        monkeypatch.setattr(module, "_train", self.train)
        monkeypatch.setattr(module, "_validate", self.validate)

    def train(self, member: Any, optimiser: Any, *rest: Any) -> Any:
        steps = rest[3]
        bias = member.layers[-1].bias + steps
        counted = jax.tree.map(lambda x: x, member)
        object.__setattr__(counted.layers[-1], "bias", bias)
        return counted, optimiser, 0.0

    def validate(self, member: Any, *rest: Any) -> float:
        number = int(member.layers[0].gain[0])
        step = int(member.layers[-1].bias[0])
        self.calls.append((number, step))
        return self.losses[number][step - 1]


def scripted(
    monkeypatch: pytest.MonkeyPatch, losses: list[list[float]], **fields: Any
) -> Any:
    """Fit members 0, 1, ... whose validation losses after each epoch are given."""
    script = Script(monkeypatch, losses)
    config = change(batch_size=64, **fields)
    ensemble = start()
    numbers = np.arange(3, dtype=np.float32)[:, None] + np.zeros((1, 12), np.float32)
    object.__setattr__(ensemble.layers[0], "gain", jnp.asarray(numbers))
    inputs, targets, _ = make_rows(60)
    validation = np.zeros((3, 60), bool)
    validation[:, :10] = True
    ensemble, report = fit(
        ensemble, inputs, targets, validation, config, 160, (0,), Workers(2)
    )
    return ensemble.layers[-1].bias[:, 0].tolist(), report, script.calls


def test_best_weights_come_back_and_members_stop_on_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With patience 3: member 0 is best after epoch 2 and stops at 5, member 1 after
    its first and stops at 4, member 2 gets better to the last epoch."""
    falling = [1.0 / n for n in range(1, 9)]
    kept, report, calls = scripted(
        monkeypatch,
        [[3.0, 1.0, 2.0, 1.5, 1.1, 0.0, 0.0], [1.0, 2.0, 2.0, 2.0, 0.0], falling],
        patience=3,
        max_epochs=8,
    )
    assert kept == [2.0, 1.0, 8.0]
    assert report.validation_loss.tolist() == [1.0, 1.0, 1.0 / 8]
    assert report.epochs.tolist() == [5.0, 4.0, 8.0]
    by_member = [[step for k, step in calls if k == number] for number in range(3)]
    assert by_member == [list(range(1, last + 1)) for last in (5, 4, 8)]


def test_a_tie_counts_as_gain(monkeypatch: pytest.MonkeyPatch) -> None:
    kept, report, _ = scripted(
        monkeypatch, [[2.0, 2.0, 2.0, 3.0, 3.0]] * 3, patience=2, max_epochs=9
    )
    assert kept == [3.0] * 3
    assert report.epochs.tolist() == [5.0] * 3


def test_a_loss_that_is_no_number_is_never_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nan = float("nan")
    kept, report, _ = scripted(
        monkeypatch, [[1.0, nan, nan]] * 3, patience=2, max_epochs=9
    )
    assert kept == [1.0] * 3
    assert report.validation_loss.tolist() == [1.0] * 3


def test_never_takes_more_steps_than_allowed() -> None:
    """Four steps make an epoch here; validations every 2 epochs would overshoot."""
    _, report = do_fit(change(validate_every=2, max_steps=11, max_epochs=100))
    assert (report.epochs * np.ceil((~make_rows(60)[2]).sum(1) / 16) <= 11).all()


def steps_taken(new_rows: list[int] | None, **fields: Any) -> list[float]:
    """Gradient steps of three members whose validation never stops them."""
    config = change(patience=10**6, validate_every_steps=50, max_epochs=10**6, **fields)
    inputs, targets, validation = make_rows(60)
    arguments = (start(config), inputs, targets, validation, config, 160, (4, 2))
    _, report = fit(*arguments, Workers(1), new_rows=new_rows)
    epochs = np.ceil((~validation).sum(1) / config.batch_size)
    return np.rint(report.epochs * epochs).tolist()


def test_steps_are_in_proportion_to_what_is_new_to_each_member() -> None:
    """Four steps per row, at least 200 and at most 300."""
    new = [10, 60, 200]
    assert steps_taken(new, steps_per_new_row=4.0, max_steps=300) == [200, 240, 300]
    assert steps_taken(None, steps_per_new_row=4.0) == [240] * 3, "all 60 are new"
    assert steps_taken(new, steps_per_new_row=4.0, max_steps=70) == [70] * 3
    assert steps_taken(new, max_steps=70) == [70] * 3, "without it nothing is counted"


def test_step_sizes_fall_over_the_steps_that_a_fit_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """From 1e-2 towards 0 within 240 steps, of which the last has a 240th part left."""
    sizes: list[float] = []
    train = module._train

    def watched(*arguments: Any) -> Any:
        sizes.extend(arguments[6][: arguments[5]].tolist())
        return train(*arguments)

    monkeypatch.setattr(module, "_train", watched)
    falling = {"final_learning_rate": 0.0, "steps_per_new_row": 4.0, "members": 1}
    config = change(**falling, patience=10**6, max_epochs=10**6)
    inputs, targets, validation = make_rows(60)
    arguments = (start(config), inputs, targets, validation[:1], config, 160, (4, 2))
    fit(*arguments, Workers(1), new_rows=[60])
    np.testing.assert_allclose(sizes, 1e-2 * (1 - np.arange(240) / 240), rtol=1e-5)


def test_members_do_not_depend_on_each_other_nor_on_the_workers() -> None:
    ensemble, report = do_fit(workers=1)
    again, other = do_fit(workers=2)
    assert same(ensemble, again)
    assert same(report, other)
    assert same(ensemble, do_fit(workers=2)[0])


def test_growing_data_recompiles_nothing_and_padding_changes_nothing() -> None:
    ensemble, _ = do_fit(rows=60)
    compiled = module._train._cache_size(), module._validate._cache_size()
    do_fit(rows=61)
    do_fit(rows=160)
    assert (module._train._cache_size(), module._validate._cache_size()) == compiled
    assert same(ensemble, do_fit(rows=60, capacity=200)[0])


def test_episodes_too_short_to_split_are_learned_all_the_same() -> None:
    inputs, targets, _ = make_rows(20)
    nothing = np.zeros((3, 20), bool)
    _, report = fit(start(), inputs, targets, nothing, CONFIG, 160, (0,), Workers(1))
    assert np.isfinite(report.validation_loss).all()


def test_gaussian_members_too_stop_where_held_out_rows_say() -> None:
    """Pure noise of known variance: nothing is to be gained but mean and deviation."""
    draw = np.random.default_rng(0)
    inputs = draw.normal(size=(400, 2)).astype(np.float32)
    targets = (0.5 + 0.3 * draw.normal(size=(400, 1))).astype(np.float32)
    config = GaussianModelConfig(
        members=2, hidden=(8,), learning_rate=1e-2, weight_decay=(0.0,)
    )
    loss, judges = Likelihood(config), np.arange(300, 400, dtype=np.int32)

    def plan(number: int) -> FitPlan:
        batches = row_batches(np.random.default_rng(number), np.arange(300), 50)
        return FitPlan(batches, loss, (loss, judges, 100), 20, 100, 2000)

    ensemble = init_gaussian(jax.random.key(0), 2, 2, 1, config.hidden)
    plans = [plan(0), plan(1)]
    fitted = fit_members(
        ensemble, None, plans, inputs, targets, config, 400, Workers(1)
    )
    assert (fitted.steps < 2000).all()
    samples = Samples(*map(jnp.asarray, (inputs, targets, judges)))
    for k, member in enumerate(fitted.members.unstack()):
        found = loss.of_rows(member, samples)
        assert float(found.mean()) == pytest.approx(fitted.losses[k], rel=1e-4)
        mean, log_variance = predict_gaussian(member, jnp.asarray(inputs[300:]))
        assert float(mean.mean()) == pytest.approx(0.5, abs=0.1)
        spread = float(jnp.exp(0.5 * log_variance).mean())
        assert spread == pytest.approx(0.3, abs=0.07)
        gap = (np.asarray(mean) - targets[300:]) ** 2
        by_row = gap / np.exp(log_variance) + log_variance
        np.testing.assert_allclose(found, np.asarray(by_row)[:, 0], rtol=1e-3)


def test_a_fixed_number_of_steps_keeps_the_last_weights_and_adams_memory() -> None:
    """In two halves as at once: the memory is carried on."""
    inputs, targets, _ = make_rows(60)
    config = change(members=1)
    batches = [np.arange(i, i + 8, dtype=np.int32) for i in range(40)]
    loss, ensemble = SquaredError("float32"), start(config)
    memory = jax.vmap(adam().init)(ensemble)

    def train(state: Any, part: list[np.ndarray]) -> Any:
        steps = len(part)
        plan = FitPlan(iter(part), loss, None, steps, steps, steps)
        given = ([plan], inputs, targets, config, 60, Workers(1))
        fitted = fit_members(*state, *given)
        assert fitted.steps.tolist() == [steps]
        return fitted.members, fitted.optimiser

    whole = train((ensemble, memory), batches)
    halves = train(train((ensemble, memory), batches[:20]), batches[20:])
    for one, other in zip(jax.tree.leaves(whole), jax.tree.leaves(halves), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-7)


def test_gradient_steps_are_adams_by_hand() -> None:
    """Of (w - x)^2, with what it reports and the gradient's norm at each step."""

    def loss(weight: Any, x: Any) -> Any:
        return jnp.sum((weight - x) ** 2), weight

    goals = jnp.array([[1.0, -2.0], [0.5, 0.0], [3.0, 1.0]])
    begin = Descent(jnp.zeros(2), adam().init(jnp.zeros(2)))
    done, (reported, norms) = gradient_steps(loss, adam(), begin, 0.1, goals)
    weight, mean, square = np.zeros(2), np.zeros(2), np.zeros(2)
    for t, goal in enumerate(np.asarray(goals, np.float64), 1):
        np.testing.assert_allclose(reported[t - 1], weight, atol=1e-5)
        slope = 2 * (weight - goal)
        assert float(norms[t - 1]) == pytest.approx(np.linalg.norm(slope), rel=1e-5)
        mean, square = 0.9 * mean + 0.1 * slope, 0.999 * square + 0.001 * slope**2
        root = np.sqrt(square / (1 - 0.999**t)) + 1e-8
        weight = weight - 0.1 * mean / (1 - 0.9**t) / root
    np.testing.assert_allclose(done.parameters, weight, atol=1e-5)


@given(
    members=st.integers(1, 7), every=st.integers(1, 12), iteration=st.integers(1, 40)
)
def test_in_turn_every_member_starts_afresh_once_per_period(
    members: int, every: int, iteration: int
) -> None:
    config = ModelConfig(
        members=members, reinitialise_every=every, reinitialise_in_turn=True
    )
    period = range(iteration, iteration + every)
    starts = np.stack([begin_afresh(config, i) for i in period])
    assert (starts.sum(0) == 1).all()
    assert starts.sum(1).max() <= -(-members // every)
    assert not begin_afresh(config, 0).any()
