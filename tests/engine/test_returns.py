"""Returns, advantages and uncertainty against loops; the units of alpha and beta."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference

from pombu.dynamics.config import ReturnConfig
from pombu.rollout.returns import discounted_sum, scaled_reward, targets

PLAIN = ReturnConfig(
    advantage_clip=None, standardise_advantages=False, variance_clip=None
)
"""Nothing clipped, nothing rescaled."""


def make_steps(seed: int, horizon: int = 7, number: int = 4) -> dict[str, Any]:
    """Random steps, of which two trajectories end early and one does not count."""
    draw = np.random.default_rng(seed)
    steps = {
        name: draw.normal(size=(horizon, number)) for name in ("rewards", "values")
    }
    steps["local"] = draw.random((horizon, number))
    steps["continues"] = np.ones((horizon, number))
    steps["weight"] = np.ones((horizon, number))
    for n, end in ((0, 2), (1, 5)):
        steps["continues"][end:, n] = 0.0
        for name in ("rewards", "values", "local", "weight"):
            steps[name][end + 1 :, n] = 0.0
    for name in steps:
        steps[name][:, 2] = 0.0
    steps["beyond"] = draw.normal(size=number)
    return steps


_targets = jax.jit(targets, static_argnums=5)


def engine(steps: dict[str, Any], config: ReturnConfig) -> Any:
    names = ("rewards", "values", "local", "continues", "weight")
    arrays = (jnp.asarray(steps[name], jnp.float32) for name in names)
    if not config.bootstrap:
        return _targets(*arrays, config)
    return _targets(*arrays, config, jnp.asarray(steps["beyond"], jnp.float32)[None])


@pytest.mark.parametrize(
    "config",
    [
        ReturnConfig(),
        PLAIN,
        ReturnConfig(gamma=1.0, advantage_clip=0.7, variance_clip=0.9),
        ReturnConfig(lam=0.95, uncertainty_units="advantage"),
        ReturnConfig(gamma=0.5, lam=0.0, standardise_advantages=False),
        ReturnConfig(bootstrap=True, advantage_clip=None),
        ReturnConfig(bootstrap=True, lam=0.3, variance_clip=None),
    ],
    ids=lambda config: f"gamma={config.gamma} lambda={config.lam}",
)
@pytest.mark.parametrize("seed", range(5))
def test_equal_to_loops(config: ReturnConfig, seed: int) -> None:
    steps = make_steps(seed)
    answer, expected = engine(steps, config), reference.targets(steps, config)
    counted = steps["weight"] > 0
    for name, array in expected.items():
        np.testing.assert_allclose(
            np.asarray(getattr(answer, name))[counted],
            array[counted],
            rtol=1e-4,
            atol=1e-5,
        )


def test_by_hand() -> None:
    """Two steps, gamma = 1/2: G = (1 + 2/2, 2), A = G - V, D = (3 + 4/4, 4)."""
    steps = {
        "rewards": [[1.0], [2.0]],
        "values": [[0.5], [1.0]],
        "local": [[3.0], [4.0]],
        "continues": [[1.0], [1.0]],
        "weight": [[1.0], [1.0]],
    }
    config = ReturnConfig(**{**PLAIN.__dict__, "gamma": 0.5})
    answer = engine(steps, config)
    assert answer.returns.tolist() == [[2.0], [2.0]]
    assert answer.advantages.tolist() == [[1.5], [1.0]]
    assert answer.uncertainty.tolist() == [[2.0], [2.0]]


def test_lambda_one_is_return_minus_value() -> None:
    steps = make_steps(0)
    answer = engine(steps, PLAIN)
    np.testing.assert_allclose(
        answer.advantages, answer.returns - steps["values"], atol=1e-5
    )


def test_nothing_flows_back_over_an_end() -> None:
    rewards = jnp.array([[1.0], [1.0], [1.0], [1.0]])
    continues = jnp.array([[1.0], [0.0], [1.0], [1.0]])
    assert discounted_sum(rewards, continues, 1.0)[:, 0].tolist() == [
        2.0,
        1.0,
        2.0,
        1.0,
    ]


def test_reward_is_clipped_before_it_is_scaled() -> None:
    rewards, std = jnp.array([-9.0, -1.0, 0.0, 4.0, 9.0]), jnp.float32(2.0)
    clipped = scaled_reward(rewards, std, ReturnConfig(reward_clip=5.0))
    assert clipped.tolist() == [-2.5, -0.5, 0.0, 2.0, 2.5]
    free = scaled_reward(rewards, std, ReturnConfig(reward_clip=None))
    assert free.tolist() == [-4.5, -0.5, 0.0, 2.0, 4.5]
    raw = ReturnConfig(reward_clip=None, scale_rewards=False)
    assert scaled_reward(rewards, std, raw).tolist() == rewards.tolist()


class TestWhatAlphaAndBetaMean:
    """alpha and beta weigh sqrt(D) against A: these pin the units of both.

    One trajectory each of a single step, whose values are 0: A is the reward before it
    is clipped and standardised, and D the local uncertainty.
    """

    rewards = np.array([[-20.0, -1.0, 0.0, 3.0, 20.0]])
    local = np.array([[0.0, 1.0, 4.0, 9.0, 100.0]])

    def targets(self, config: ReturnConfig) -> Any:
        ones, zeros = np.ones((1, 5)), np.zeros((1, 5))
        steps = {"rewards": self.rewards, "values": zeros, "local": self.local}
        return engine({**steps, "continues": ones, "weight": ones}, config)

    def test_published_code(self) -> None:
        """A is clipped to 5 and then standardised; D is clipped to 5 and not scaled."""
        answer = self.targets(ReturnConfig())
        clipped = np.array([-5.0, -1.0, 0.0, 3.0, 5.0])
        expected = (clipped - clipped.mean()) / clipped.std()
        np.testing.assert_allclose(answer.advantages[0], expected, rtol=1e-5)
        assert float(answer.advantage_std) == pytest.approx(clipped.std())
        assert float(answer.advantage_unit) == pytest.approx(clipped.std())
        np.testing.assert_allclose(
            answer.uncertainty[0], np.sqrt([0, 1, 4, 5, 5]), rtol=1e-5
        )

    def test_a_larger_reward_makes_uncertainty_weigh_more(self) -> None:
        """Twice the rewards leave the standardised A as it is but double sqrt(D)."""
        config = ReturnConfig(advantage_clip=None, variance_clip=None)
        once = self.targets(config)
        self.rewards, self.local = 2 * self.rewards, 4 * self.local
        twice = self.targets(config)
        np.testing.assert_allclose(twice.advantages, once.advantages, rtol=1e-5)
        np.testing.assert_allclose(twice.uncertainty, 2 * once.uncertainty, rtol=1e-5)

    def test_advantage_units_do_not_depend_on_the_reward(self) -> None:
        """Divided by the same standard deviation as A, both keep their relation."""
        config = ReturnConfig(
            advantage_clip=None, variance_clip=None, uncertainty_units="advantage"
        )
        once = self.targets(config)
        assert float(once.advantage_unit) == pytest.approx(1.0)
        std = self.rewards.std()
        np.testing.assert_allclose(
            once.uncertainty, np.sqrt(self.local) / std, rtol=1e-5
        )
        self.rewards, self.local = 2 * self.rewards, 4 * self.local
        np.testing.assert_allclose(
            self.targets(config).uncertainty, once.uncertainty, rtol=1e-5
        )

    @pytest.mark.parametrize("standardise", [True, False])
    @pytest.mark.parametrize("units", ["reward", "advantage"])
    def test_the_unit_takes_advantages_to_the_uncertainty(
        self, standardise: bool, units: Any
    ) -> None:
        """A over sqrt(D) in one unit is the same, whatever the two are divided by."""
        config = ReturnConfig(
            advantage_clip=None,
            variance_clip=None,
            standardise_advantages=standardise,
            uncertainty_units=units,
        )
        answer = self.targets(config)
        shift = self.rewards.mean() if standardise else 0.0
        np.testing.assert_allclose(
            answer.advantages[:, 1:]
            * answer.advantage_unit
            / answer.uncertainty[:, 1:],
            (self.rewards - shift)[:, 1:] / np.sqrt(self.local)[:, 1:],
            rtol=1e-5,
        )
