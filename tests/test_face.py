"""The agent that a user of Stable-Baselines3 expects, and a look into its model."""

import functools
from pathlib import Path
from typing import Any

import gymnasium
import jax.numpy as jnp
import numpy as np
import pytest

import pombu
from pombu import METRPO, POMBU, UsageError
from pombu.agent.world_model import as_rows, padded, whole
from pombu.data import Normaliser
from pombu.envs import check, load
from pombu.envs.task import config_of
from pombu.errors import RunError
from pombu.nn import predict_value
from pombu.training.callbacks import Callback, Progress, as_callbacks

STATES = np.array([[1.0, -0.5], [0.0, 0.3], [-1.5, 1.5]], np.float32)
ACTIONS = np.array([[0.1, 0.0], [0.0, -0.1], [0.05, 0.05]], np.float32)
SMOKE: dict[str, Any] = {"preset": "smoke", "seed": 3}


@pytest.fixture(scope="module")
def agent() -> POMBU:
    return POMBU("Point2D", **SMOKE).learn(total_timesteps=60)


def test_options_by_keyword_nested_dict_and_dotted_name() -> None:
    nested = POMBU("Point2D", **SMOKE, alpha=0.25, policy={"hidden": [8, 8]})
    dotted = POMBU(
        "Point2D", **SMOKE, alpha=np.float64(0.25), **{"policy.hidden": (8, 8)}
    )
    assert nested.config == dotted.config
    assert (nested.config.alpha, nested.config.policy.hidden) == (0.25, (8, 8))
    default = POMBU("Point2D", **SMOKE).config
    assert nested.config.policy.epochs == default.policy.epochs
    part = POMBU("Point2D", **SMOKE, policy=nested.config.policy)
    assert part.config.policy == nested.config.policy


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"policy": {"hiden": (8,)}}, r"'policy.hiden' \(did you mean policy.hidden"),
        ({"minibatch": 5}, r"'minibatch' \(did you mean policy.minibatch or value"),
        ({"learn_rate": 1}, "no option 'learn_rate'"),
        ({"alpha": "big"}, r"alpha is 'big', which is not a number"),
        ({"policy": {"hidden": (8, -1)}}, r"policy\.hidden is -1; it must be a whole"),
        ({"policy": 3}, r"no option 'policy' .*policy"),
    ],
)
def test_a_wrong_option_is_one_clear_error(options: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        POMBU("Point2D", **SMOKE, **options)


@pytest.mark.parametrize("steps", [-1, 0, True])
def test_steps_that_are_no_number_of_steps(agent: POMBU, steps: Any) -> None:
    with pytest.raises(UsageError, match=r"total_timesteps is .* whole number from 1"):
        agent.learn(steps)


def test_whole_numbers() -> None:
    """Also those that the tests' type checker would not let through to `learn`."""
    assert whole("n", 1e3, 1, 2000) == 1000
    assert whole("n", np.int64(5), 1, 5) == 5
    for wrong in (float("nan"), float("inf"), 2.5, "x", None, [3], 6, object()):
        with pytest.raises(UsageError, match=r"n is .* whole number from 1 to 5"):
            whole("n", wrong, 1, 5)


@pytest.mark.parametrize(
    "given", [np.zeros((2, 5)), np.zeros(3), None, "x", object(), [], [[1.0], [2, 3]]]
)
def test_observations_of_another_shape_are_refused(agent: POMBU, given: Any) -> None:
    with pytest.raises(UsageError, match="observation"):
        agent.predict(given)


def test_rows_and_batches() -> None:
    shapes = [(4,), (2, 2)]
    for shape, single in (((4,), True), ((2, 2), True), ((3, 2, 2), False)):
        rows, alone = as_rows("x", np.zeros(shape), shapes)
        assert (rows.shape[1], alone) == (4, single)
    assert as_rows("x", 0.5, [(1,)])[1]


def test_stable_baselines_evaluates_it(agent: POMBU) -> None:
    evaluation = pytest.importorskip("stable_baselines3.common.evaluation")
    monitor = pytest.importorskip("stable_baselines3.common.monitor")
    env = monitor.Monitor(agent.learner.task.make())
    mean, std = evaluation.evaluate_policy(agent, env, n_eval_episodes=2)
    assert np.isfinite([mean, std]).all()
    action, state = agent.predict(STATES[0], None, np.array([True]), True)
    assert action.shape == (2,)
    assert state is None


def test_evaluate_history_steps_and_repr(agent: POMBU) -> None:
    first, again = agent.evaluate(3), agent.evaluate(3)
    assert first == again
    assert len(first.returns) == 3
    assert agent.real_steps == 60
    assert [row["real_steps"] for row in agent.history] == [60]
    assert agent.history[0]["return_real"] < 0
    assert repr(agent) == (
        "POMBU('Point2D', preset='smoke', seed=3): 60 real steps in 1 iterations"
    )
    for wrong in (0, -1):
        with pytest.raises(UsageError, match=r"episodes is .* whole number from 1"):
            agent.evaluate(wrong)
    with pytest.raises(UsageError, match="seed is -1"):
        agent.evaluate(1, seed=-1)


def test_every_member_predicts_the_next_step(agent: POMBU) -> None:
    dynamics = agent.learner.dynamics(agent.state)
    due = dynamics.step(jnp.asarray(STATES), jnp.asarray(ACTIONS))
    found = agent.predict_next(STATES, ACTIONS)
    members = agent.config.model.members
    assert found.observations.shape == (members, 3, 2)
    np.testing.assert_allclose(found.observations, due.states, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found.rewards, due.rewards, rtol=1e-5, atol=1e-6)
    assert not found.terminated.any()
    one = agent.predict_next(STATES[0], ACTIONS[0])
    np.testing.assert_allclose(
        one.observations[:, 0], due.states[:, 0], rtol=1e-4, atol=1e-5
    )
    with pytest.raises(UsageError, match="3 observations and 2 actions"):
        agent.predict_next(STATES, ACTIONS[:2])


def test_imagined_trajectories_follow_each_members_own_steps(agent: POMBU) -> None:
    found = agent.imagine(STATES, steps=4)
    members = agent.config.model.members
    assert found.observations.shape == (members, 3, 5, 2)
    assert found.actions.shape == (members, 3, 4, 2)
    assert found.returns.shape == (members, 3)
    np.testing.assert_array_equal(found.observations[0, :, 0], STATES)
    # A plain loop: each member alone, step after step, with the same actions.
    for member in range(members):
        for step in range(4):
            before = found.observations[member, :, step]
            ahead = agent.predict_next(before, found.actions[member, :, step])
            np.testing.assert_allclose(
                found.observations[member, :, step + 1],
                ahead.observations[member],
                rtol=1e-4,
                atol=1e-5,
            )
            np.testing.assert_allclose(
                found.rewards[member, :, step], ahead.rewards[member], rtol=1e-3
            )
    with pytest.raises(UsageError, match="steps is 0"):
        agent.imagine(STATES, steps=0)


def test_the_value_is_in_units_of_reward(agent: POMBU) -> None:
    state = agent.state
    normal = Normaliser.of(state.experience.observation).normalise(jnp.asarray(STATES))
    unit = float(state.experience.returns.std[0])
    due = np.asarray(predict_value(state.value, normal)) * unit
    np.testing.assert_allclose(agent.value(STATES), due, rtol=1e-4)
    assert agent.q_value(STATES, ACTIONS, rollouts=2).shape == (3,)


def test_uncertainty_comes_back_as_it_was_asked(agent: POMBU) -> None:
    torch = pytest.importorskip("torch")
    plain = agent.q_uncertainty(STATES, ACTIONS, rollouts=2)
    assert isinstance(plain, np.ndarray)
    tensor = agent.q_uncertainty(torch.tensor(STATES), torch.tensor(ACTIONS), 2)
    assert isinstance(tensor, torch.Tensor)
    np.testing.assert_array_equal(tensor.numpy(), plain)
    array = agent.q_uncertainty(jnp.asarray(STATES), ACTIONS, 2)
    np.testing.assert_array_equal(np.asarray(array), plain)
    for rollouts in (0, -1):
        with pytest.raises(UsageError, match="rollouts is"):
            agent.q_uncertainty(STATES, ACTIONS, rollouts)


@pytest.mark.parametrize(("number", "due"), [(1, 1), (2, 2), (3, 4), (8, 8), (9, 16)])
def test_batches_are_padded_to_a_power_of_two(number: int, due: int) -> None:
    rows = np.arange(2.0 * number).reshape(number, 2)
    assert padded(rows).shape == (due, 2)
    np.testing.assert_array_equal(padded(rows)[:number], rows)


def test_what_an_algorithm_does_not_have_is_said() -> None:
    linear = METRPO(
        "Point2D", **SMOKE, baseline={"kind": "linear"}, **{"returns.bootstrap": False}
    )
    with pytest.raises(UsageError, match="metrpo has no value function"):
        linear.value(STATES)
    with pytest.raises(UsageError, match="pets gives no access to a learned model"):
        pombu.PETS("Point2D", **SMOKE).predict_next(STATES, ACTIONS)


class Count(Callback):
    def __init__(self) -> None:
        self.iterations = 0

    def on_iteration(self, progress: Progress) -> None:
        self.iterations += 1


def test_one_callback_several_or_a_function(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    seen: list[int] = []

    def stop_at_once(progress: Progress) -> bool:
        seen.append(progress.iteration)
        return False

    one, other = Count(), Count()
    pupil = POMBU("Point2D", **SMOKE, tensorboard_log=tmp_path / "events")
    pupil.learn(120, callback=[one, stop_at_once], callbacks=other)
    assert (one.iterations, other.iterations, seen) == (1, 1, [1])
    assert [*(tmp_path / "events").iterdir()]
    with pytest.raises(UsageError, match="a callback is 5"):
        as_callbacks(5)


def test_the_best_checkpoint_can_be_loaded(tmp_path: Path) -> None:
    pupil = POMBU("Point2D", **SMOKE).learn(180, out=tmp_path / "run")
    scores = [row["return_real"] for row in pupil.history]
    best = POMBU.load(tmp_path / "run", checkpoint="best")
    assert int(best.state.iteration) == 1 + int(np.argmax(scores))
    assert best.real_steps == best.episodes.steps
    assert best.history == pupil.history[: int(best.state.iteration)]


class Cart(gymnasium.Env[Any, Any]):
    """A cart on a line, with a scalar action."""

    observation_space = gymnasium.spaces.Box(-10, 10, (2,), np.float32)
    action_space = gymnasium.spaces.Box(-1, 1, (), np.float32)

    def __init__(self, push: float = 0.1) -> None:
        self.push = push

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.state = self.np_random.normal(size=2).astype(np.float32)
        return self.state, {}

    def step(self, action: Any) -> Any:
        assert np.shape(action) == ()
        position, speed = self.state
        speed = 0.9 * speed + self.push * float(action)
        self.state = np.array([position + speed, speed], np.float32)
        return self.state, -abs(float(position)), False, False, {}

    def close(self) -> None:
        raise OSError("already closed")


def limited(push: float) -> Any:
    return gymnasium.wrappers.TimeLimit(Cart(push), 20)


@pytest.mark.parametrize(
    "env",
    [
        lambda: limited(0.2),
        functools.partial(limited, push=0.2),
        limited(0.2),
    ],
    ids=["lambda", "partial", "instance"],
)
def test_environments_without_a_name(env: Any, tmp_path: Path) -> None:
    pupil = POMBU(env, **SMOKE)
    assert pupil.learner.task.horizon == 20
    assert pupil.learner.task.make().unwrapped.push == 0.2
    assert pupil.predict(np.zeros(2))[0].shape == ()
    with pytest.warns(UserWarning, match="has no name in a module"):
        pupil.save(tmp_path / "agent")
    with pytest.raises(UsageError, match="only the script knows"):
        POMBU.load(tmp_path / "agent")


def test_exits_and_empty_spaces_are_the_environments_own() -> None:
    class Quits(Cart):
        def reset(self, *, seed: Any = None, options: Any = None) -> Any:
            raise SystemExit(0)

    class Leaves(Cart):
        def close(self) -> None:
            raise SystemExit(0)

    class Empty(Cart):
        action_space = gymnasium.spaces.Box(-1, 1, (0,), np.float32)

    class Spaceless(gymnasium.Env[Any, Any]):
        pass

    with pytest.raises(RunError, match="raised SystemExit: 0"):
        POMBU(Quits, **SMOKE).learn(60)
    assert check(load(config_of(Leaves))).findings
    assert POMBU(Leaves, **SMOKE).learn(60).real_steps >= 60
    with pytest.raises(UsageError, match=r"action space .* without any entries"):
        POMBU(Empty, **SMOKE)
    with pytest.raises(UsageError, match="has no observation_space"):
        POMBU(Spaceless, **SMOKE)


class Goal(Cart):
    """The same cart with a goal beside it, a mode and a number of its own."""

    action_space = gymnasium.spaces.Box(-1, 1, (), np.float32)
    observation_space: Any = gymnasium.spaces.Dict(
        {
            "cart": gymnasium.spaces.Box(-10, 10, (2,), np.float32),
            "rest": gymnasium.spaces.Tuple(
                [gymnasium.spaces.Discrete(3), gymnasium.spaces.Box(-1, 1, (1,))]
            ),
        }
    )

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        observation, info = super().reset(seed=seed)
        return self._with_goal(observation), info

    def step(self, action: Any) -> Any:
        observation, *rest = super().step(action)
        return self._with_goal(observation), *rest

    def _with_goal(self, cart: Any) -> Any:
        return {"cart": cart, "rest": (np.int64(1), np.array([0.5], np.float32))}


def test_dicts_and_tuples_are_flattened() -> None:
    env = gymnasium.wrappers.TimeLimit(Goal(), 15)
    pupil = POMBU(env, **SMOKE).learn(30)
    assert pupil.learner.task.observation_dim == 6
    rows = pupil.episodes[0].observations
    np.testing.assert_array_equal(rows[:, 2:], np.tile([0, 1, 0, 0.5], (16, 1)))
    observation, _ = env.reset(seed=0)
    flat = np.concatenate([observation["cart"], [0, 1, 0, 0.5]])
    due, _ = pupil.predict(flat, deterministic=True)
    found, _ = pupil.predict(observation, deterministic=True)
    assert found.shape == ()
    np.testing.assert_array_equal(found, due)
    batch = {
        "cart": np.stack([observation["cart"]] * 2),
        "rest": (np.array([1, 1]), np.full((2, 1), 0.5, np.float32)),
    }
    both, _ = pupil.predict(batch, deterministic=True)
    np.testing.assert_allclose(both, [due, due], rtol=1e-5, atol=1e-6)
    with pytest.raises(UsageError, match="does not fit the space Dict"):
        pupil.predict({"wagon": 1})
