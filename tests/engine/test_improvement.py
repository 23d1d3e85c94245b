"""The updates of V_phi and pi_theta."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import reference

from pombu.nn import (
    entropy,
    init_policy,
    init_value,
    kl,
    predict_value,
)
from pombu.optim.config import PolicyConfig, ValueConfig
from pombu.optim.objectives import exploration_advantage, value_loss
from pombu.optim.ppo import (
    Batch,
    improve_policy,
    improve_value,
    policy_adam,
    shuffles,
    value_adam,
)

NUMBER = 50
VALUE = init_value(jax.random.key(2), 3, (6,))
VALUE_CONFIG = ValueConfig(epochs=3, minibatch=16, gradient_clip=0.5)
POLICY_CONFIG = PolicyConfig(
    epochs=3, minibatch=16, gradient_clip=0.5, clip=0.15, minimum_log_std=-0.31
)


def make_batch() -> tuple[Any, Batch]:
    """Samples of a policy; five of them do not count."""
    draw = np.random.default_rng(0)
    policy = init_policy(jax.random.key(0), 3, 2, (6,), log_std=-0.3)
    observations = jnp.asarray(draw.normal(size=(NUMBER, 3)), jnp.float32)
    actions, log_probs = policy.sample(observations, jax.random.key(1))

    def numbers() -> Any:
        return jnp.asarray(draw.normal(size=NUMBER), jnp.float32)

    return policy, Batch(
        observations,
        actions,
        log_probs,
        numbers() + observations[:, 0],
        numbers() + 2.0 * actions[:, 0],
        jnp.abs(numbers()),
        jnp.ones(NUMBER).at[7:12].set(0.0),
    )


def plain(batch: Batch) -> dict[str, Any]:
    """In float64, without steps left, which V does not know here."""
    fields = batch._asdict().items()
    return {name: np.asarray(x, np.float64) for name, x in fields if x is not None}


def update(batch: Batch, policy: Any, alpha: float) -> Any:
    """One policy update; what it gives, without the optimiser's state."""
    optimiser = policy_adam(POLICY_CONFIG).init(policy)
    improved, _, report = improve_policy(
        policy, optimiser, batch, (5,), 1e-2, alpha, POLICY_CONFIG
    )
    return improved, report


def test_orders_are_one_permutation_per_epoch() -> None:
    orders = shuffles((1, 2), 4, 30)
    assert [sorted(order) for order in orders.tolist()] == [list(range(30))] * 4
    assert len({tuple(order) for order in orders.tolist()}) == 4
    assert np.array_equal(orders, shuffles((1, 2), 4, 30))
    assert not np.array_equal(orders, shuffles((1, 3), 4, 30))


def test_value_update_equals_a_plain_loop_of_optax_steps() -> None:
    """50 samples in minibatches of 16: the last two of each epoch sit out."""
    _, batch = make_batch()
    optimiser = value_adam(VALUE_CONFIG).init(VALUE)
    improved, state, before = improve_value(
        VALUE, optimiser, batch, (5,), 1e-2, VALUE_CONFIG
    )
    plain = optax.chain(optax.clip_by_global_norm(0.5), optax.adam(1e-2))

    def loss(value: Any, rows: Any) -> Any:
        predicted = predict_value(value, batch.observations[rows])
        return value_loss(predicted, batch.returns[rows], batch.weight[rows])

    @jax.jit
    def step(value: Any, state: Any, rows: Any) -> Any:
        change, state = plain.update(jax.grad(loss)(value, rows), state)
        return optax.apply_updates(value, change), state

    value, plain_state = VALUE, plain.init(VALUE)
    for order in shuffles((5,), 3, NUMBER):
        for first in (0, 16, 32):
            value, plain_state = step(value, plain_state, order[first : first + 16])
    for one, two in zip(jax.tree.leaves(improved), jax.tree.leaves(value), strict=True):
        np.testing.assert_allclose(one, two, atol=1e-5)
    assert int(optax.tree.get(state, "count")) == 9
    everything = np.arange(NUMBER)
    assert float(before) == pytest.approx(float(loss(VALUE, everything)), rel=1e-5)
    assert float(loss(improved, everything)) < float(before)


def test_value_update_equals_the_reference() -> None:
    _, batch = make_batch()
    optimiser = value_adam(VALUE_CONFIG).init(VALUE)
    improved, _, _ = improve_value(VALUE, optimiser, batch, (5,), 1e-2, VALUE_CONFIG)
    start = reference.network_of(VALUE)
    arrays = plain(batch)
    expected = reference.improve_value(
        start, reference.Adam(start, 0.5), arrays, shuffles((5,), 3, NUMBER), 16, 1e-2
    )
    for one, two in zip(reference.network_of(improved), expected, strict=True):
        np.testing.assert_allclose(one, two, atol=1e-5)


@pytest.mark.parametrize("alpha", [0.0, 0.5])
def test_policy_update_equals_the_reference(alpha: float) -> None:
    policy, batch = make_batch()
    improved, report = update(batch, policy, alpha)
    start = reference.policy_of(policy)
    arrays = plain(batch)
    expected = reference.improve_policy(
        start,
        reference.Adam([*start.mean, start.log_std], 0.5, eps=1e-5),
        arrays,
        shuffles((5,), 3, NUMBER),
        1e-2,
        alpha,
        POLICY_CONFIG,
    )
    answer = reference.policy_of(improved)
    for one, two in zip(
        [*answer.mean, answer.log_std], [*expected.mean, expected.log_std], strict=True
    ):
        np.testing.assert_allclose(one, two, atol=1e-4)
    assert float(improved.log_std.min()) >= -0.31 - 1e-6
    counted = {name: x[arrays["weight"] > 0] for name, x in arrays.items()}
    numbers = reference.report(start, expected, counted, 0.15)
    for name in ("kl", "p_improve", "penalty"):
        assert float(getattr(report, name)) == pytest.approx(numbers[name], rel=1e-2)


def test_a_larger_alpha_takes_smaller_steps() -> None:
    policy, batch = make_batch()
    alphas = (0.0, 0.5, 1.0, 4.0)
    steps = [float(update(batch, policy, alpha)[1].kl) for alpha in alphas]
    assert steps == sorted(steps, reverse=True)
    assert steps[-1] < 0.3 * steps[0]


def test_exploration_moves_towards_what_is_uncertain() -> None:
    """With no advantage at all and uncertainty where the second action is positive."""
    policy, batch = make_batch()
    positive = (batch.actions[:, 1] > 0).astype(jnp.float32)
    bold = exploration_advantage(jnp.zeros_like(positive), positive, 1.0)
    bolder, _ = update(batch._replace(advantages=bold), policy, 0.0)
    before = float(policy.mean(batch.observations)[:, 1].mean())
    after = float(bolder.mean(batch.observations)[:, 1].mean())
    assert after > before + 0.01


def test_gaussian_policy_in_closed_form() -> None:
    """Log-probability, entropy and KL of diagonal Gaussians."""
    from scipy.stats import norm

    old = init_policy(jax.random.key(0), 3, 2, (6,), log_std=0.2)
    new = init_policy(jax.random.key(1), 3, 2, (6,), log_std=-0.4)
    observations = jax.random.normal(jax.random.key(2), (4, 3)) * 50
    actions, drawn = old.sample(observations, jax.random.key(3))
    first, second = np.exp(0.2), np.exp(-0.4)
    means = np.asarray(old.mean(observations)), np.asarray(new.mean(observations))
    expected = norm.logpdf(actions, means[0], first).sum(-1)
    np.testing.assert_allclose(drawn, expected, rtol=1e-5)
    np.testing.assert_allclose(old.log_prob(observations, actions), expected, rtol=1e-5)
    assert float(entropy(old)) == pytest.approx(2 * norm.entropy(0, first), rel=1e-6)
    divergence = (
        np.log(second / first)
        + (first**2 + (means[0] - means[1]) ** 2) / (2 * second**2)
        - 0.5
    ).sum(-1)
    np.testing.assert_allclose(kl(old, new, observations), divergence, rtol=1e-4)
    np.testing.assert_allclose(kl(old, old, observations), 0.0, atol=1e-6)
