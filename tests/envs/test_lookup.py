"""Names a user may type, right and wrong."""

import gymnasium
import pytest

from pombu.envs import EnvConfig, load, make, resolve
from pombu.envs.catalogue import in_one_line
from pombu.errors import UsageError


def test_short_names_and_ids() -> None:
    assert resolve("HalfCheetah") == "pombu/HalfCheetah-v0"
    assert resolve("pombu/Ant-v0") == "pombu/Ant-v0"
    assert resolve("Pendulum-v1") == "Pendulum-v1"
    assert resolve("some.module:factory") == "some.module:factory"


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [
        ("HalfCheeta", "HalfCheetah"),
        ("halfcheetah", "HalfCheetah"),
        ("pombu/Walker2D-v0", "pombu/Walker2d-v0"),
        ("Pendulum", "Pendulum-v1"),
        ("pendulum-v1", "Pendulum-v1"),
    ],
)
def test_unknown_name_suggests_the_nearest(name: str, suggestion: str) -> None:
    with pytest.raises(UsageError, match=f"did you mean '{suggestion}'"):
        resolve(name)


def test_unknown_name_without_a_neighbour() -> None:
    with pytest.raises(UsageError, match="pombu envs"):
        resolve("@@@@@@")


def test_overrides_and_config() -> None:
    task = load("HalfCheetah", horizon=7, observation_noise=0.5, alive_bonus=2.0)
    assert task.horizon == 7
    assert task.config == EnvConfig("pombu/HalfCheetah-v0", 7, 0.5, 2.0)
    assert load(EnvConfig("HalfCheetah", 7, 0.5, 2.0)) == task


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"horizon": 0}, "horizon is 0"),
        ({"horizon": -3}, "horizon is -3"),
        ({"observation_noise": -0.1}, "observation_noise is -0.1"),
        ({"observation_noise": float("nan")}, "observation_noise is nan"),
        ({"alive_bonus": float("inf")}, "alive_bonus is inf"),
        ({"observe_y": False}, "HalfCheetah observes none"),
    ],
)
def test_bad_options(options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        load("HalfCheetah", **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("CartPole-v1", r"action space Discrete\(2\).*ActionWrapper"),
        ("FrozenLake-v1", r"action space Discrete\(4\).*Box of floats"),
        ("toys:UnboundedActions", r"infinite bounds.*TransformAction"),
        ("toys:IntegerActions", r"action space Box\(0, 3.*Box of floats"),
        ("toys:not_an_env", "returned int"),
        ("toys:not_callable", "no function 'not_callable'"),
        ("toys:absent", "no function 'absent'"),
        ("toys:breaks", "OSError: no simulator here"),
        ("toys:needs_argument", "TypeError.*required arguments"),
        ("toys:HalfContract", "without any of reward, terminal and initial"),
        ("absent_module:factory", "ModuleNotFoundError"),
        ("FetchReach-v99", "no environment"),
    ],
)
def test_unfit_environments(name: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        load(name)
    assert "\n" not in str(caught.value)


def test_options_of_pombus_tasks_do_not_fit_others() -> None:
    with pytest.raises(UsageError, match="not of Pendulum-v1"):
        load("Pendulum-v1", alive_bonus=1.0)
    with pytest.raises(UsageError, match="not of Pendulum-v1"):
        load("Pendulum-v1", observe_y=False)


def test_time_limits() -> None:
    assert load("Pendulum-v1").horizon == 200
    assert load("Pendulum-v1", horizon=50).horizon == 50
    assert load("Pendulum-v1", horizon=500).horizon == 500
    assert load("toys:Counter", horizon=12).horizon == 12


def test_contract_of_a_users_environment_is_found() -> None:
    assert load("toys:Endless").contract is not None
    assert load("toys:Endless", horizon=5, observation_noise=0.1).contract is not None


def test_contract_behind_a_wrapper_that_changes_things_is_not_used() -> None:
    assert load("toys:behind_a_wrapper").contract is None


def test_module_that_registers_an_id(tmp_path, monkeypatch) -> None:
    lines = [
        "import gymnasium",
        "gymnasium.register('Mine-v0', 'toys:Counter', max_episode_steps=9)",
    ]
    (tmp_path / "my_registrations.py").write_text("\n".join(lines))
    monkeypatch.chdir(tmp_path)
    assert load("my_registrations:Mine-v0").horizon == 9
    gymnasium.registry.pop("Mine-v0")


def test_render_mode_reaches_a_factory() -> None:
    assert make(EnvConfig("toys:Counter"), "rgb_array").render_mode == "rgb_array"


def test_an_error_without_words_has_a_name() -> None:
    class OddError(Exception):
        def __str__(self) -> str:
            raise ValueError("no words")

    assert in_one_line(OddError()) == "OddError"
    assert in_one_line(KeyError()) == "KeyError"
    assert in_one_line(ValueError("two\n lines")) == "ValueError: two lines"
