"""Which run answers which job, and where it is cut off."""

from dataclasses import replace
from pathlib import Path

import pytest
from fabricated import panels_of, write_run

from pombu.analysis.curves import find_curves
from pombu.envs import EnvConfig
from pombu.errors import UsageError
from pombu.paper.experiments import POMBU
from pombu.paper.panel_runs import (
    Request,
    choose,
    gather_results,
)
from pombu.paper.reproduce import headline
from pombu.studies.held import answers
from pombu.studies.progress import PlainRuns
from pombu.studies.study import Job, plan
from pombu.training import config_file
from pombu.training.config_file import flat


def test_which_run_answers_a_job() -> None:
    job = Job("pombu", EnvConfig("HalfCheetah"), 0, total_steps=1000)
    config = flat(config_file.to_json(job.config()))
    assert answers(job.spec(), job, config)
    # The task's own horizon, written out, and no bonus are the same.
    same = replace(
        job,
        env=EnvConfig("HalfCheetah", horizon=200, alive_bonus=0.0),
        total_steps=5000,
    )
    assert answers(same.spec(), job, config)
    for other in (
        replace(job, seed=1),
        replace(job, preset="smoke"),
        replace(job, algorithm="meppo"),
        replace(job, env=EnvConfig("Swimmer")),
        replace(job, env=replace(job.env, horizon=1000)),
        replace(job, env=replace(job.env, observation_noise=0.1)),
        replace(job, env=replace(job.env, history=2)),
        replace(job, overrides=(("alpha", 0.75),)),
        replace(job, overrides=(("beta", 0.0),)),
        replace(job, overrides=(("minimum_kl", 1e-3),)),
        replace(job, overrides=(("returns.uncertainty_units", "reward"),)),
    ):
        assert not answers(other.spec(), job, config)
    changed = replace(job, overrides=(("model.max_steps", 77),))
    assert answers(changed.spec(), job, config)


@pytest.mark.parametrize(
    ("algorithm", "option", "value"),
    [
        ("pets", "kappa", 1.0),
        ("steve", "weighting", "bellman"),
        ("metrpo", "draw", "trajectory"),
        ("metrpo", "stop_rule.use", True),
    ],
)
def test_variants_do_not_answer_for_each_other(
    algorithm: str, option: str, value: object
) -> None:
    plain = Job(algorithm, EnvConfig("HalfCheetah"), 0, total_steps=1000)
    variant = replace(plain, overrides=((option, value),))
    for one, other in ((plain, variant), (variant, plain)):
        config = flat(config_file.to_json(one.config()))
        assert answers(one.spec(), one, config)
        assert not answers(other.spec(), one, config)


def test_what_an_old_run_does_not_say_is_the_default() -> None:
    held = Job("pombu", EnvConfig("HalfCheetah"), 0, overrides=(("minimum_kl", None),))
    spec = held.spec()
    del spec.config["minimum_kl"]
    assert answers(spec, held, flat(config_file.to_json(held.config())))
    plain = replace(held, overrides=(("minimum_kl", 1e-3),))
    assert not answers(spec, plain, flat(config_file.to_json(plain.config())))


def test_an_ant_that_does_not_see_its_y_is_another_task() -> None:
    job = Job("pombu", EnvConfig("Ant"), 0)
    config = flat(config_file.to_json(job.config()))
    spec = job.spec()
    assert answers(spec, job, config)
    spec.config["env"]["observe_y"] = False
    assert not answers(spec, job, config)


def test_a_run_whose_last_iteration_goes_beyond_the_budget_is_whole(
    tmp_path: Path,
) -> None:
    """ME-TRPO's iterations are long: the last rows are at 198,900 and 204,000."""
    job = Job("metrpo", EnvConfig("HalfCheetah"), 0, "paper", 200_000)
    write_run(replace(job, total_steps=204_000), tmp_path / "run")
    (panel, *_) = panels_of("figure-2", "paper")
    arm = next(arm for arm in panel.arms if arm.algorithm == "metrpo")
    request = Request("paper", tmp_path, tmp_path / "no", (tmp_path,), train=False)
    alone = replace(panel, arms=(arm,), seeds=(0,))
    for steps, last in ((200_000, 204_000), (204_000, 204_000), (10_200, 10_200)):
        asked = replace(alone, total_steps=steps)
        (group,) = gather_results([asked], request, PlainRuns.__new__(PlainRuns)).groups
        assert (group.missing, group.steps) == ((), last)
    asked = replace(alone, total_steps=204_001)
    (group,) = gather_results([asked], request, PlainRuns.__new__(PlainRuns)).groups
    assert group.missing == (0,)


def test_ppo_s_learning_rate_falls_over_the_whole_of_each_run(tmp_path: Path) -> None:
    jobs = {
        (panel.task, arm.label): panel.jobs(arm)[0]
        for panel in panels_of("figure-2", "paper")
        for arm in panel.arms
        if arm.algorithm == "ppo"
    }
    assert len(jobs) == 8
    for job in jobs.values():
        config = job.config()
        assert config.planned_steps(200) == job.total_steps
        assert config.rate(job.total_steps - 2000, 200) > 0
        assert config.rate(job.total_steps, 200) == 0
    long, short = jobs["HalfCheetah", "PPO_max"], jobs["HalfCheetah", "PPO"]
    assert len(plan([long, short], tmp_path)) == 2
    assert not answers(long.spec(), short, flat(config_file.to_json(short.config())))
    # A rate that does not fall does not tell runs apart.
    panel = panels_of("figure-2")[0]
    constant = next(arm for arm in panel.arms if arm.algorithm == "ppo")
    assert panel.jobs(constant)[0].overrides == ()


def test_ppo_is_not_asked_for_steps_at_a_rate_of_0() -> None:
    job = Job("ppo", EnvConfig("HalfCheetah"), 0, "paper", 1_000_000)
    with pytest.raises(UsageError, match="within 200000 real steps, and 1000000 are"):
        job.spec()
    replace(job, overrides=(("iterations", 500),)).spec()
    replace(job, overrides=(("final_learning_rate", 1e-5),)).spec()
    replace(job, preset="fast").spec()


def test_the_longest_run_answers_and_is_cut_off(tmp_path: Path) -> None:
    short = Job("pombu", EnvConfig("HalfCheetah"), 0, total_steps=4000)
    write_run(short, tmp_path / "a")
    write_run(replace(short, total_steps=400_000), tmp_path / "b")
    found = choose(short, find_curves([tmp_path]))
    assert found is not None
    assert found.run.path.name == "b"
    (panel,) = panels_of("figure-4")
    alone = replace(panel, arms=(POMBU,), seeds=(0,), total_steps=100_000)
    request = Request("fast", tmp_path, tmp_path / "no", (tmp_path,), train=False)
    results = gather_results([alone], request, PlainRuns.__new__(PlainRuns))
    assert results.groups[0].steps == 100_000
    assert results.missing == []


def test_runs_are_found_at_any_depth_and_items_are_no_runs(tmp_path: Path) -> None:
    run = tmp_path / "figure-2" / "runs" / "a"
    write_run(Job("pombu", EnvConfig("HalfCheetah"), 0, total_steps=4000), run)
    (tmp_path / "figure-2" / "config.json").write_text("{}")
    for source in (tmp_path, tmp_path / "figure-2", run):
        assert [curve.run.path for curve in find_curves([source])] == [run]


def test_the_papers_number_says_its_steps_where_they_are_not_ours(
    tmp_path: Path,
) -> None:
    write_run(
        Job("pombu", EnvConfig("HalfCheetah"), 0, total_steps=200_000), tmp_path / "a"
    )
    (panel, *_) = panels_of("table-1")
    said = {}
    for steps in (100_000, 200_000):
        alone = replace(panel, arms=panel.arms[:1], seeds=(0,), total_steps=steps)
        request = Request("fast", tmp_path, tmp_path / "no", (tmp_path,), train=False)
        said[steps] = headline(
            gather_results([alone], request, PlainRuns.__new__(PlainRuns))
        )
    assert said[100_000].endswith("(paper 852 ± 21 at 200k)")
    assert said[200_000].endswith("(paper 852 ± 21)")


def test_an_item_does_not_accept_another_kind_of_source(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="missing "):
        find_curves([tmp_path / "missing"])
