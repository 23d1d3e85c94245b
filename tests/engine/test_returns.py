"""Returns, advantages and uncertainty against loops; the units of alpha and beta."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference

from pombu.dynamics.config import ReturnConfig
from pombu.errors import UsageError
from pombu.rollout.returns import Correction, discounted_sum, scaled_reward, targets

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


class TestWhichUncertainty:
    """U, F and U_rho, raw and recalibrated, against loops over pairs of steps."""

    members = 4
    beyond = np.array([0.7, 0.2, 0.0, 1.3])

    def steps(self, seed: int) -> dict[str, Any]:
        """Members' values, their local uncertainty, and what lies beyond two cuts."""
        steps = make_steps(seed)
        draw = np.random.default_rng(seed + 100)
        counted = steps["weight"] > 0
        q = draw.normal(size=(*counted.shape, self.members)) * counted[..., None]
        doubt = np.zeros(counted.shape)
        doubt[2, 0], doubt[5, 1] = 0.6, 0.4
        return {**steps, "q": q, "doubt": doubt, "local": q.var(-1) + doubt}

    def answer(self, steps: dict[str, Any], config: ReturnConfig, **more: float) -> Any:
        names = ("rewards", "values", "local", "continues", "weight")
        correction = None
        if more:
            numbers = (jnp.float32(more.get(n, d)) for n, d in (("rho", 0), ("c", 1)))
            correction = Correction(*numbers)
        return _targets(
            *(jnp.asarray(steps[name], jnp.float32) for name in names),
            config,
            jnp.zeros((1, 4)),
            jnp.asarray(self.beyond, jnp.float32)[None],
            jnp.asarray(steps["q"], jnp.float32),
            jnp.asarray(steps["doubt"], jnp.float32),
            correction,
        )

    def pairs(self, steps: dict[str, Any], gamma: float, rho: Any) -> np.ndarray:
        """Sum over all pairs of later steps; rho None is the members' covariance."""
        horizon, number = steps["local"].shape
        found = np.zeros((horizon, number))
        deviations = steps["q"] - steps["q"].mean(-1, keepdims=True)
        for n, h in np.ndindex(number, horizon):
            ends = np.flatnonzero(steps["continues"][h:, n] == 0)
            last = h + int(ends[0]) if len(ends) else horizon - 1
            whole = not len(ends)
            for t, s in np.ndindex(last + 1 - h, last + 1 - h):
                if rho is None:
                    shared = (deviations[h + t, n] * deviations[h + s, n]).mean()
                    shared += steps["doubt"][h + t, n] * (t == s)
                else:
                    both = steps["local"][h + t, n] * steps["local"][h + s, n]
                    shared = rho ** abs(t - s) * np.sqrt(both)
                found[h, n] += gamma ** (t + s) * shared
            if whole:
                length = horizon - h
                found[h, n] += gamma ** (2 * length) * self.beyond[n]
                for t in range(length if rho else 0):
                    both = np.sqrt(steps["local"][h + t, n] * self.beyond[n])
                    found[h, n] += (
                        2 * gamma ** (t + length) * rho ** (length - t) * both
                    )
        return found

    @pytest.mark.parametrize("seed", range(3))
    def test_against_pairs_of_steps(self, seed: int) -> None:
        steps, gamma = self.steps(seed), 0.9
        counted = steps["weight"] > 0
        for kind, rho in (("none", 0.0), ("full", None), ("fitted", 0.6)):
            config = ReturnConfig(
                gamma=gamma, bootstrap=True, variance_clip=None, correlation=kind
            )
            found = self.answer(steps, config, rho=0.6)
            np.testing.assert_allclose(
                np.asarray(found.variances)[counted],
                self.pairs(steps, gamma, rho)[counted],
                rtol=2e-4,
            )

    @pytest.mark.parametrize("kind", ["none", "full", "fitted"])
    def test_the_scale_stretches_the_uncertainty_alone(self, kind: Any) -> None:
        """sqrt(D) is three times as large; A, and the targets of U_psi, stay."""
        steps = self.steps(0)
        config = ReturnConfig(bootstrap=True, variance_clip=None, correlation=kind)
        once, scaled = (self.answer(steps, config, rho=0.5, c=c) for c in (1.0, 3.0))
        np.testing.assert_allclose(scaled.uncertainty, 3 * once.uncertainty, rtol=1e-6)
        np.testing.assert_array_equal(scaled.variances, once.variances)
        np.testing.assert_array_equal(scaled.advantages, once.advantages)
        np.testing.assert_array_equal(scaled.returns, once.returns)

    def test_the_clip_is_of_what_is_used(self) -> None:
        config = ReturnConfig(bootstrap=True, variance_clip=0.5)
        found = self.answer(self.steps(0), config, c=0.3)
        np.testing.assert_allclose(
            found.uncertainty,
            np.sqrt(np.minimum(0.09 * np.asarray(found.variances), 0.5)),
            rtol=1e-5,
        )

    def test_f_needs_the_members(self) -> None:
        steps = {name: jnp.ones((2, 1)) for name in "abcde"}
        with pytest.raises(UsageError, match=r"returns\.correlation is full"):
            targets(*steps.values(), ReturnConfig(correlation="full"))
