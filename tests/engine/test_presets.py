"""Every value of the paper's tables, typed from Appendix D."""

from typing import Any

import pytest

from pombu.algorithms.pombu.config import POMBUConfig
from pombu.algorithms.registry import PRESETS, preset
from pombu.envs import load
from pombu.errors import UsageError

# Table 5 (H = 200): hidden layers, real trajectories, updates, iterations, virtual
# trajectories, minibatch, and c of the learning rate (c - i) / (c x 10^4).
SHORT = {
    "Ant": ((512, 512, 512), 20, 30, 150, 500, 1250, 160),
    "Walker2d": ((512, 512), 20, 30, 100, 500, 1250, 110),
    "HalfCheetah": ((512, 512), 10, 20, 100, 200, 500, 110),
    "Swimmer": ((512, 512), 10, 20, 50, 200, 500, 60),
}
# Table 6 (H = 1000) is the same for all tasks; alpha is in the text.
LONG = (4, 30, 50, 50, 500, 60)
LONG_ALPHA = {"Ant": 0.25, "Walker2d": 0.5, "HalfCheetah": 0.75, "Swimmer": 0.5}


def check_column(config: POMBUConfig, column: tuple[int, ...]) -> None:
    real, updates, iterations, virtual, minibatch, c = column
    assert config.trajectories == real
    assert config.exploration.policies == real
    assert config.updates == updates
    assert config.iterations == iterations
    assert config.imagination.trajectories == virtual
    assert config.exploration.trajectories == virtual
    for part in (config.policy, config.value):
        assert part.minibatch == minibatch
        for i in (0, 1, iterations // 2, iterations):
            expected = (c - i) / (c * 1e4)
            assert part.rate(i / iterations) == pytest.approx(expected)


def check_text(config: POMBUConfig) -> None:
    """What the text says of all tasks."""
    model = config.model
    assert model.kind == "ensemble"
    assert model.members == 5
    assert (model.batch_size, model.learning_rate) == (1000, 0.0002)
    assert model.validation_fraction == 0.2
    assert (model.patience, model.validate_every) == (25, 5)
    assert (model.max_steps, model.validate_every_steps) == (None, None)
    assert model.precision == "float32"
    for part in (config.policy, config.value):
        assert part.hidden == (64, 64)
        assert part.epochs == 10
    assert config.policy.clip == 0.15
    assert config.beta == 10.0
    assert config.returns.scale_rewards
    assert config.evaluation_episodes == 20


def check_published_code(config: POMBUConfig) -> None:
    """What the published code does where the text is silent."""
    returns = config.returns
    assert (returns.gamma, returns.lam) == (0.99, 1.0)
    assert not returns.bootstrap
    assert (returns.reward_clip, returns.advantage_clip) == (5.0, 5.0)
    assert returns.standardise_advantages
    assert returns.variance_clip == 5.0
    assert returns.uncertainty_units == "reward"
    for part in (config.model, config.policy, config.value):
        assert part.gradient_clip == 0.5
    assert config.policy.reset_std_iterations == 5
    assert config.model.reinitialise_every == 10
    assert config.model.max_epochs == 10_000
    assert config.model.validation_rows == 20_000
    assert config.exploration.random_members


@pytest.mark.parametrize("task", SHORT)
def test_paper_with_200_steps(task: str) -> None:
    config = preset("pombu", "paper", task)
    hidden, *column = SHORT[task]
    assert config.model.hidden == hidden
    assert config.alpha == 0.5
    check_column(config, tuple(column))
    check_text(config)
    check_published_code(config)
    assert load(config.env).horizon == 200


@pytest.mark.parametrize("task", SHORT)
def test_paper_with_1000_steps(task: str) -> None:
    config = preset("pombu", "paper", task, horizon=1000)
    assert config.model.hidden == SHORT[task][0]
    assert config.alpha == LONG_ALPHA[task]
    check_column(config, LONG)
    check_text(config)
    check_published_code(config)
    assert load(config.env).horizon == 1000


def imagined_samples(config: POMBUConfig, horizon: int) -> int:
    explore = config.exploration.policies * config.exploration.trajectories
    update = config.updates * config.imagination.trajectories
    return config.iterations * (explore + update) * horizon


def test_sample_counts_of_table_1() -> None:
    """1.2e8 imagined and 200k real samples for POMBU, 8e7 imagined for MEPPO."""
    pombu = preset("pombu", "paper", "HalfCheetah")
    meppo = preset("meppo", "paper", "HalfCheetah")
    assert imagined_samples(pombu, 200) == 120_000_000
    assert imagined_samples(meppo, 200) == 80_000_000
    assert pombu.rows(200) == meppo.rows(200) == 200_000


def without_uncertainty(config: POMBUConfig) -> dict[str, Any]:
    fields = dict(vars(config))
    exploration = vars(fields.pop("exploration"))
    assert fields.pop("alpha") == 0.0
    assert fields.pop("minimum_kl") is None
    assert fields.pop("beta") == fields.pop("kappa") == 0.0
    assert exploration["policies"] == 0
    assert not fields.pop("tail").use
    return fields


@pytest.mark.parametrize("name", PRESETS)
def test_meppo_differs_by_its_uncertainty_alone(name: str) -> None:
    meppo = preset("meppo", name, "HalfCheetah", 1000)
    pombu = vars(preset("pombu", name, "HalfCheetah", 1000))
    for field, value in without_uncertainty(meppo).items():
        assert value == pombu[field]


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("horizon", [None, 1000])
@pytest.mark.parametrize("task", [*SHORT, "Point2D", "Point3D"])
def test_every_preset_fills_its_minibatches(
    task: str, horizon: int | None, name: str
) -> None:
    for algorithm in ("pombu", "meppo"):
        config = preset(algorithm, name, task, horizon)
        config.require_full_minibatches(load(config.env).horizon)


def test_smoke_has_eight_iterations() -> None:
    assert preset("pombu", "smoke", "HalfCheetah").iterations >= 8


def test_fast_changes_no_idea() -> None:
    """K, epsilon and N are the paper's; the unit of sqrt(D) is not."""
    fast, paper = (preset("pombu", name, "HalfCheetah") for name in ("fast", "paper"))
    for config in (fast, paper):
        assert config.model.members == 5
        assert config.policy.clip == 0.15
        assert config.trajectories == 10
        assert config.exploration.random_members
    assert (paper.alpha, paper.beta, paper.updates) == (0.5, 10.0, 20)
    assert paper.returns.uncertainty_units == "reward"


@pytest.mark.parametrize("horizon", [None, 1000])
@pytest.mark.parametrize("task", [*SHORT, "Point2D", "Pendulum-v1"])
def test_fast_has_one_unit_and_one_alpha(task: str, horizon: int | None) -> None:
    config = preset("pombu", "fast", task, horizon)
    assert config.alpha == preset("pombu", "fast", "HalfCheetah").alpha
    assert config.returns.uncertainty_units == "advantage"
    assert config.tail.use
    assert config.minimum_kl is None, "alpha is alpha in every update"


@pytest.mark.parametrize("algorithm", ["meppo", "metrpo", "slbo", "mbmpo"])
@pytest.mark.parametrize("task", [*SHORT, "Point2D", "Pendulum-v1"])
def test_all_imagine_the_same_branches(algorithm: str, task: str) -> None:
    """Length and starts of virtual trajectories, lambda and V beyond them."""
    own, pombu = (preset(name, "fast", task) for name in (algorithm, "pombu"))
    for field in ("steps", "real_starts"):
        assert getattr(own.imagination, field) == getattr(pombu.imagination, field)
    for field in ("gamma", "lam", "bootstrap", "reward_clip"):
        assert getattr(own.returns, field) == getattr(pombu.returns, field)


@pytest.mark.parametrize(
    ("task", "horizon", "steps"),
    [
        ("HalfCheetah", None, 25),
        ("Ant", 1000, 25),
        ("Pendulum-v1", None, 25),
        ("Point2D", None, 30),
        ("HalfCheetah", 49, 49),
        ("HalfCheetah", 50, 25),
    ],
)
def test_branches_are_short(task: str, horizon: int | None, steps: int) -> None:
    config = preset("pombu", "fast", task, horizon)
    assert config.imagination.steps == steps
    assert config.imagination.draw == "rollout"


@pytest.mark.parametrize("algorithm", ["pombu", "meppo", "metrpo"])
def test_long_episodes_are_cut_off_while_they_are_learned_from(algorithm: str) -> None:
    long = preset(algorithm, "fast", "HalfCheetah", 1000)
    short = preset(algorithm, "fast", "HalfCheetah")
    assert (long.episode_steps, short.episode_steps) == (200, None)
    for field in ("trajectories", "updates", "iterations", "imagination"):
        assert getattr(long, field) == getattr(short, field)
    for name, task in (("paper", "HalfCheetah"), ("fast", "HalfCheetah-v5")):
        assert preset(algorithm, name, task, 1000).episode_steps is None


def test_an_unknown_preset_is_named() -> None:
    with pytest.raises(UsageError, match="did you mean 'smoke'"):
        preset("pombu", "smok", "Point2D")


@pytest.mark.parametrize("algorithm", ["pombu", "metrpo", "slbo"])
@pytest.mark.parametrize("horizon", [200, 300, 400, 900, 999, 1500])
def test_whole_episodes_of_your_own_take_one_round(
    algorithm: str, horizon: int
) -> None:
    config: Any = preset(algorithm, "fast", "MountainCarContinuous-v0", horizon)
    assert 0 < config.least_steps <= config.trajectories * horizon


def test_alpha_of_an_environment_of_your_own() -> None:
    config: Any = preset("pombu", "paper", "MountainCarContinuous-v0", 1000)
    assert config.alpha == 0.5
