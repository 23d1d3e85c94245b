"""Algorithm 2 as a whole: what it counts, compiles and repeats."""

from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest
from tiny import CONFIG, change, run, same

from pombu.algorithms.base import keys_of
from pombu.algorithms.config import budget
from pombu.algorithms.pombu.learner import Learner
from pombu.data.episodes import EpisodeStore
from pombu.dynamics.fit import FitReport, begin_afresh
from pombu.envs import load
from pombu.rollout.plan import real_starts
from pombu.training.algorithm import StageTimer

COMPILED: list[str] = []


def _count(event: str, seconds: float, **details: Any) -> None:
    if event == "/jax/core/compile/backend_compile_duration":
        COMPILED.append(event)


jax.monitoring.register_event_duration_secs_listener(_count)

TASK = load(CONFIG.env)

PAPER_NAMES = {
    "entropy",
    "kl",
    "penalty",
    "p_improve",
    "p_improve_ratio",
    "p_improve_prob",
    "return_model",
    "return_real",
    "return_deterministic",
    "validation_loss_0",
    "model_error_1",
    "uncertainty",
    "masked_trajectories",
    "real_steps",
    "imagined_steps",
}


@pytest.mark.parametrize("in_turn", [False, True])
def test_nothing_recompiles_after_the_second_iteration(in_turn: bool) -> None:
    """Five more, during which the members start afresh once."""
    jax.clear_caches()  # or an earlier test might have compiled what the first needs
    afresh = {"model__reinitialise_every": 4, "model__reinitialise_in_turn": in_turn}
    config = change(CONFIG, **afresh, iterations=8)
    learner = Learner(TASK, config)
    state, episodes = learner.init(0), EpisodeStore()
    counts = []
    for _ in range(7):
        before = len(COMPILED)
        state, _ = learner.iterate(state, episodes, StageTimer())
        counts.append(len(COMPILED) - before)
    assert counts[0] > 0
    assert counts[2:] == [0] * 5


def test_members_start_afresh_in_turn() -> None:
    """Steps are too small to be seen, so that only fresh weights are new ones."""
    turns = {"model__reinitialise_every": 3, "model__reinitialise_in_turn": True}
    config = change(CONFIG, **turns, model__learning_rate=1e-30)
    learner = Learner(TASK, config)
    state, episodes = learner.init(0), EpisodeStore()
    for iteration in range(5):
        before = np.asarray(state.ensemble.layers[0].direction)
        state, _ = learner.iterate(state, episodes, StageTimer())
        after = np.asarray(state.ensemble.layers[0].direction)
        changed = np.any(before != after, (1, 2))
        assert changed.tolist() == begin_afresh(config.model, iteration).tolist()
        assert changed.sum() == (1 if iteration else 0)


def test_a_fit_knows_how_many_rows_are_new_to_each_member(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Three episodes of 6 steps per iteration; to a fresh member all rows are new."""
    seen: list[list[int]] = []

    def watched(ensemble: Any, *_: Any, new_rows: list[int], **__: Any) -> Any:
        seen.append(new_rows)
        return ensemble, FitReport(np.zeros(3), np.ones(3))

    monkeypatch.setattr("pombu.dynamics.fit.fit", watched)
    turns = {"model__reinitialise_every": 3, "model__reinitialise_in_turn": True}
    run(Learner(TASK, change(CONFIG, **turns, updates=0)), 0, 4)
    assert seen == [[18] * 3, [18, 18, 36], [18, 54, 18], [72, 18, 18]]


@pytest.fixture(scope="module")
def learned() -> tuple[Any, list[Any]]:
    return run(Learner(TASK, CONFIG), 3, 2)


def test_counts_real_and_imagined_steps(learned: Any) -> None:
    """2 updates of 4 trajectories; from the second iteration on, 2 exploration
    policies of 4 each; 6 steps a trajectory."""
    _, rows = learned
    assert [row["real_steps"] for row in rows] == [3 * 6, 2 * 3 * 6]
    assert [row["imagined_steps"] for row in rows] == [48, 48 + 48 + 48]


def test_metrics_carry_the_papers_names(learned: Any) -> None:
    _, rows = learned
    for row in rows:
        assert set(row) >= PAPER_NAMES
        assert all(np.isfinite(value) for value in row.values())
        assert 0.0 <= row["p_improve_prob"] <= 1.0
    assert [list(row) for row in rows] == [list(rows[0])] * 2


def test_same_seed_same_run_whatever_the_workers(learned: Any) -> None:
    state, rows = learned
    again, other = run(Learner(TASK, CONFIG, workers=1), 3, 2)
    assert same(state, again)
    assert rows == other
    assert not same(state.policy, run(Learner(TASK, CONFIG), 4, 1)[0].policy)


def test_meppo_imagines_for_its_updates_only() -> None:
    config = change(CONFIG, alpha=0.0, beta=0.0, exploration__policies=0)
    _, rows = run(Learner(TASK, config, "meppo"), 3, 2)
    assert [row["imagined_steps"] for row in rows] == [48, 96]


def test_alpha_gives_way_while_the_policy_stands_still() -> None:
    """No update reaches a KL of 1e9, so each of the 2 x 2 divides alpha by 1.3."""
    config = change(CONFIG, alpha=0.5, minimum_kl=1e9)
    state, rows = run(Learner(TASK, config), 3, 2)
    assert [row["alpha"] for row in rows] == pytest.approx([0.5 / 1.3**2, 0.5 / 1.3**4])
    assert float(state.alpha) == rows[-1]["alpha"]


def test_alpha_grows_back_but_not_beyond_its_value() -> None:
    config = change(CONFIG, alpha=0.5, minimum_kl=1e-3)
    assert config.next_alpha(0.1, 3e-3) == pytest.approx(0.13)
    assert config.next_alpha(0.45, 3e-3) == 0.5
    assert config.next_alpha(0.3, 1.5e-3) == 0.3
    assert CONFIG.next_alpha(0.3, 0.0) == 0.3


def test_alpha_never_vanishes() -> None:
    config = change(CONFIG, alpha=0.5, minimum_kl=1e-3)
    alpha = 0.5
    for _ in range(100):
        alpha = config.next_alpha(alpha, 0.0)
    assert alpha == pytest.approx(0.005)


def test_one_member_is_never_uncertain() -> None:
    _, rows = run(Learner(TASK, change(CONFIG, model__members=1)), 3, 1)
    assert rows[0]["uncertainty"] == 0.0
    assert rows[0]["penalty"] == 0.0


def test_imagining_in_the_simulator_needs_no_model() -> None:
    """Nothing is fitted, nothing is uncertain, and exploration policies run too."""
    learner = Learner(TASK, change(CONFIG, model__kind="simulator"))
    state, rows = run(learner, 3, 2)
    assert same(state.ensemble, learner.init(3).ensemble)
    assert not same(state.policy, learner.init(3).policy)
    for row in rows:
        assert row["uncertainty"] == 0.0
        assert row["masked_trajectories"] == 0.0
    assert rows[-1]["imagined_steps"] == 48 + 48 + 48


def test_without_a_contract_rewards_and_starts_come_from_real_data() -> None:
    """One more output for the reward, restored to the reward's own units."""
    task = replace(TASK, contract=None)
    config = change(CONFIG, model__reward="learned", model__max_epochs=60)
    state, rows = run(Learner(task, config), 3, 1)
    assert state.ensemble.layers[-1].bias.shape == (3, 3)
    assert all(np.isfinite(value) for value in rows[-1].values())
    # Six steps of -|s|^2 with |s| between 0 and 3.
    assert -60.0 < rows[-1]["return_model"] < 5.0


def test_learning_rates_fall_linearly() -> None:
    policy = CONFIG.policy
    assert policy.rate(0.0) == pytest.approx(1e-2)
    assert policy.rate(0.5) == pytest.approx(5.5e-3)
    assert policy.rate(1.0) == pytest.approx(1e-3)


def test_log_std_is_reset_in_the_first_iterations_only() -> None:
    """The policy itself collects first, with std 1; later its std is its own."""
    config = change(CONFIG, policy__reset_std_iterations=2, updates=0)
    learner = Learner(TASK, config)
    state = learner.init(0)
    narrow = jax.tree.map(lambda x: x, state)
    object.__setattr__(narrow.policy, "log_std", state.policy.log_std - 3.0)
    episodes = EpisodeStore()
    entropies = []
    for _ in range(2):
        narrow, row = learner.iterate(narrow, episodes, StageTimer())
        entropies.append(row["entropy"])
        object.__setattr__(narrow.policy, "log_std", state.policy.log_std - 3.0)
    narrow, row = learner.iterate(narrow, episodes, StageTimer())
    assert entropies[0] == entropies[1] == pytest.approx(row["entropy"] + 6.0)


def test_episodes_that_are_learned_from_may_be_cut_off() -> None:
    """Cut off, not terminated; what is evaluated is whole, and so is the time left."""
    config = change(CONFIG, episode_steps=4, updates=1, capacity=0)
    learner, episodes = Learner(TASK, config), EpisodeStore()
    state, row = learner.iterate(learner.init(0), episodes, StageTimer())
    assert [len(episode) for episode in episodes] == [4] * config.trajectories
    assert not any(episode.terminated for episode in episodes)
    assert int(state.real_steps) == 4 * config.trajectories
    assert config.rows(6) == budget(config, lambda: 6) == 4 * 3 * config.iterations
    _, whole = learner.evaluation(state, keys_of(state), StageTimer())
    assert {len(episode) for episode in whole} == {6}
    _, left = real_starts(TASK, list(episodes), 50, jax.random.key(0))
    assert set(left.tolist()) == {6, 5, 4, 3}
    assert TASK.cut(None) is TASK.cut(7) is TASK
    assert np.isfinite(list(row.values())).all()
