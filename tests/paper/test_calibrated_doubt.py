"""Learning with U, F and recalibrated uncertainties: which runs, and their table."""

from pathlib import Path

from fabricated import panels_of, write_runs

from pombu.analysis.curves import find_curves
from pombu.paper.calibrated_doubt import doubt_part, returns_table
from pombu.paper.panel_runs import choose


def test_no_variant_takes_the_run_of_another(tmp_path: Path) -> None:
    panels = panels_of("calibrated-doubt")
    write_runs(panels, tmp_path)
    known = find_curves([tmp_path])
    arms = [(panel, arm) for panel in panels for arm in panel.arms]
    jobs = {job.name: job for panel, arm in arms for job in panel.jobs(arm)}
    assert len(jobs) == 3 * (4 + 4 + 2)
    for job in jobs.values():
        chosen = choose(job, known)
        assert chosen is not None
        assert chosen.run.path.name == job.name


def test_smoke_runs_are_corrected_by_their_evaluations() -> None:
    for panel in panels_of("calibrated-doubt", "smoke"):
        for arm in panel.arms:
            config = panel.jobs(arm)[0].config()
            assert config.calibration.use
            assert config.evaluation_episodes == 5
            assert config.returns.recalibrate == ("recalibrated" in arm.label)


def test_the_table_says_how_likely_a_variant_beats_u() -> None:
    def arm(*returns: float) -> dict[str, object]:
        iqm = {"value": returns[1], "low": min(returns), "high": max(returns)}
        return {"seeds": [0, 1, 2], "final_returns": list(returns), "iqm": iqm}

    summary = {
        "Pendulum-v1": {
            "arms": {"U": arm(1.0, 2.0, 3.0), "F": arm(4.0, 5.0, 6.0)},
            "probability_of_improvement": {
                "U over F": {"value": 0.1, "low": 0.0, "high": 0.4}
            },
        }
    }
    (u, f) = returns_table(summary)
    assert u == ("Pendulum-v1", "U", "0, 1, 2", "1, 2, 3", "2 [1, 3]", "")
    assert f[2:] == ("0, 1, 2", "4, 5, 6", "5 [4, 6]", "0.90 [0.60, 1.00]")
    assert "| Pendulum-v1 | F | 0, 1, 2 |" in doubt_part(summary)
