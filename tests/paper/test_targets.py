"""When runs first reached a return."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from fabricated import write_run

from pombu.analysis.curves import find_curves
from pombu.cli import main
from pombu.envs import EnvConfig
from pombu.paper.targets import arrival, eligible, races
from pombu.studies.held import find_settled
from pombu.studies.study import Job

JOB = Job("pombu", EnvConfig("HalfCheetah"), 0, total_steps=40_000)


def write_rows(job: Job, path: Path, returns: list[float]) -> None:
    """A run of 1000 real and 5000 imagined steps, and 60 s, per evaluation."""
    write_run(job, path)
    lines = ["iteration,real_steps,imagined_steps,return_real,iteration_seconds"]
    lines += [f"{i},{1000 * i},{5000 * i},{x},60.0" for i, x in enumerate(returns, 1)]
    (path / "metrics.csv").write_text("\n".join(lines) + "\n")
    (path / "versions.json").write_text('[{"usable_cores": 2}]')


def test_an_arrival_is_the_first_evaluation_at_the_target(tmp_path: Path) -> None:
    write_rows(JOB, tmp_path / "a", [100.0, 851.0, 852.0, 10.0, 900.0])
    (curve,) = find_curves([tmp_path])
    found = arrival(curve, 852.0)
    assert (found.seed, found.real_steps, found.imagined_steps) == (0, 3000, 15_000)
    # Three iterations of a minute on two cores.
    assert found.core_minutes == pytest.approx(6.0)
    never = arrival(curve, 1000.0)
    assert (never.real_steps, never.core_minutes, never.last_step) == (None, None, 5000)


def test_which_runs_race(tmp_path: Path) -> None:
    write_rows(JOB, tmp_path / "a", [900.0])
    write_rows(JOB, tmp_path / "again", [900.0, 901.0])
    others = {
        "noise": replace(JOB, env=EnvConfig("HalfCheetah", observation_noise=0.1)),
        "other": replace(JOB, env=EnvConfig("Swimmer")),
        "short": replace(JOB, env=EnvConfig("HalfCheetah", horizon=100)),
        "exploration/a": replace(JOB, seed=7),
    }
    for name, job in others.items():
        write_rows(job, tmp_path / name, [900.0])
    (found,) = eligible(find_settled([tmp_path]))
    # The same run, kept twice, counts once, as far as it went.
    assert found.run.path.name == "again"


def test_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = tmp_path / "runs"
    write_rows(JOB, runs / "0", [0.0, 900.0])
    write_rows(replace(JOB, seed=1), runs / "1", [900.0])
    write_rows(replace(JOB, algorithm="meppo"), runs / "2", [900.0])
    write_rows(replace(JOB, algorithm="meppo", seed=1), runs / "3", [1.0, 2.0])
    older = replace(JOB, algorithm="sac", overrides=(("batch_size", 77),))
    write_rows(older, runs / "4", [1.0])
    long = replace(JOB, env=EnvConfig("HalfCheetah", horizon=1000))
    write_rows(long, runs / "5", [4000.0])
    found = races(eligible(find_curves([runs])))
    assert [(r.horizon, r.target, r.method, r.reached) for r in found] == [
        (200, 852.0, "pombu (fast)", 2),
        (200, 852.0, "meppo (fast)", 1),
        (200, 852.0, "sac (fast) *", 0),
        (1000, 3672.0, "pombu (fast)", 1),
        (1000, 5000.0, "pombu (fast)", 0),
    ]
    out = tmp_path / "targets"
    command = ["reproduce", "targets", "--json", "--from", str(runs), "--out", str(out)]
    assert main(command) == 0
    numbers = json.loads(capsys.readouterr().out)["numbers"]
    assert numbers["H = 200, 852, pombu (fast)"] == [2000, 1000]
    page = (out / "README.md").read_text()
    assert "| 200 | 852 | pombu (fast) | 0, 1 | 2k, 1k | 4, 2 | 1e+04, 5e+03 |" in page
    assert "| meppo (fast) | 0, 1 | 1k, not reached in 2k | 2, – |" in page
    assert (out / "targets.png").stat().st_size > 5000
    assert "first to the target: H = 200, 852: pombu (fast) (2k, 1k real steps)" in (
        (out / "line.json").read_text()
    )
    assert main(["reproduce", "overview", "--out", str(tmp_path)]) == 0
    assert "| targets | fast |" in (tmp_path / "README.md").read_text()


def test_no_run_of_the_task(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["reproduce", "targets", "--from", str(tmp_path), "--out", str(tmp_path)]
    assert main(command) == 2
    assert "targets found no run of HalfCheetah" in capsys.readouterr().err
