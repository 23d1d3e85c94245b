"""Pages about reproductions that were done: the overview, and the uncertainty page.

`overview` writes OUT/README.md: every item of the paper, ours beside the paper's, and
what is missing. `uncertainty-page` writes OUT/uncertainty.md from the files of the
three uncertainty pictures.
"""

import json
from pathlib import Path
from typing import Any

from pombu.analysis.calibration_study import read as read_stages
from pombu.analysis.calibration_study import text_of as stages_text
from pombu.analysis.plots import markdown_table
from pombu.errors import UsageError
from pombu.paper import Profile
from pombu.paper.calibrated_doubt import NAME, doubt_part
from pombu.paper.claims import write_claims
from pombu.paper.experiments import Reproduction
from pombu.paper.point_experiment import FLAT, TIMED, stage_title
from pombu.paper.point_figures import TITLES
from pombu.paper.reproduce import LINE, PAGES, find, names

OPENING = """# Results

Written by `pombu reproduce overview --out results` from the files in the folders
below: each holds its pictures (PNG and PDF), its data, its settings (config.json), the
versions it ran with, and where it has a folder `runs`, the files to draw it again from.
Returns are means and standard deviations over seeds of the last three evaluations, each
of 20 stochastic episodes (2 in smoke); in brackets the paper's own numbers, at its full
scale."""
SCORES = {
    "mean_z_squared": "mean z²",
    "gaussian_nll": "NLL",
    "crps": "CRPS",
    "miscalibration_area": "miscal. area",
    "spearman": "Spearman",
    "ks": "KS",
    "mean_sigma": "mean σ",
}
WANTED = (0.5, 2.0)


def _write_overview(profile: Profile, out: Path) -> dict[str, Any]:
    """Write the page; the profile is that of the runs that claims are judged by."""
    lines = _read_lines(out)
    done = [(n, line, at) for n in names() for line, at in lines if line["item"] == n]
    rows = [
        (name, line["profile"], line["says"] + _note(line), f"[{folder}]({folder})")
        for name, line, folder in done
    ]
    have = {name for name, *_ in done}
    left = [name for name in names() if name not in have and name not in PAGES]
    table = markdown_table(("item", "profile", "what came out", "folder"), rows)
    parts = [OPENING, write_claims(profile, out), f"## Every item\n\n{table}"]
    parts += [_item_section(name, line, folder, out) for name, line, folder in done]
    parts += [_missing(left), _pages(out)]
    (out / "README.md").write_text("\n\n".join(filter(None, parts)) + "\n")
    return {"done": sorted(have), "missing": left}


def _read_lines(out: Path) -> list[tuple[dict[str, Any], str]]:
    """The lines of items that were done, some at several sizes, with their folders."""
    return [
        (json.loads(path.read_text()), path.parent.relative_to(out).as_posix())
        for path in sorted(out.rglob(LINE))
    ]


def _item_section(name: str, line: dict[str, Any], folder: str, out: Path) -> str:
    missing = "\n".join(f"- {what}" for what in line["missing"])
    picture = f"{folder}/{name}.png"
    last = folder.rpartition("/")[2]
    parts = [
        f"## {last if last.startswith(name) else name}",
        f"{find(name).summary.split(' (')[0]}.",
        f"![{name}]({picture})" if (out / picture).exists() else "",
        f"Without a whole run at this profile:\n\n{missing}" if missing else "",
        f"Again: `{line['command']}`",
    ]
    return "\n\n".join(filter(None, parts))


def _note(line: dict[str, Any]) -> str:
    return f" ({line['note']})" if line.get("note") else ""


def _missing(names: list[str]) -> str:
    if not names:
        return ""
    rows = "\n".join(
        f"- {name}: {find(name).summary}; `pombu reproduce {name}`" for name in names
    )
    return f"## Not done yet\n\n{rows}"


def _pages(out: Path) -> str:
    pages = [path for path in out.glob("*.md") if path.name != "README.md"]
    found = (
        path.relative_to(out).as_posix() for path in (*pages, *out.glob("*/README.md"))
    )
    rows = "\n".join(f"- [{name}]({name})" for name in sorted(found))
    return f"## More\n\n{rows}" if rows else ""


def _write_uncertainty_page(profile: Profile, out: Path) -> dict[str, Any]:
    """Write the page; the profile makes no difference."""
    folder = out / "uncertainty"
    chain = _read(folder / "appendix-c" / "summary.json", "appendix-c", folder)
    scores = _read(folder / "figure-1" / "calibration.json", "figure-1", folder)
    config = _read(folder / "figure-1" / "config.json", "figure-1", folder)
    versions = _read(folder / "figure-1" / "versions.json", "figure-1", folder)
    pairs = _read(folder / "figure-scatter" / "summary.json", "figure-scatter", folder)
    page = out / "uncertainty.md"
    parts = [
        _opening(config, versions),
        _chain_part(chain),
        _histogram_part(scores),
        *_code_part(folder / "figure-1-code"),
        *_recalibrated_part(folder / "figure-1-recalibrated"),
        _independence_part(scores),
        _scatter_part(pairs),
        *_stages_part(folder / "stages"),
        *_doubt_part(out / NAME / "summary.json"),
    ]
    page.write_text("\n\n".join(parts) + "\n")
    return {
        name: found["stages"][FLAT]["mean_z_squared"]["mean"]
        for name, found in scores.items()
    }


def _read(path: Path, name: str, folder: Path) -> Any:
    if not path.exists():
        raise UsageError(
            f"{path} is missing; make it with `pombu reproduce {name} --out "
            f"{folder / name}`."
        )
    return json.loads(path.read_text())


def _opening(config: dict[str, Any], versions: dict[str, Any]) -> str:
    settings = config["settings"]
    return f"""# Uncertainty: results

Written by `pombu reproduce uncertainty-page --out results` from the files in
[`uncertainty/`](uncertainty), which hold the data, settings and versions of everything
below (pombu {versions["pombu"]}, JAX {versions["jax"]}). How to read the scores is
explained in the [guide](../docs/uncertainty.md).

Point experiments, profile `{config["profile"]}`: {settings["datasets"]} datasets per
environment, each with its own random policy, {settings["members"]} models of
{settings["real_trajectories"]} real trajectories, and {settings["start_states"]} start
states."""


def _chain_part(chain: dict[str, dict[str, float]]) -> str:
    digits = {"D": 8, "W": 8, "U": 8, "B": 5, "U/D": 4, "B/D": 1}
    table = markdown_table(
        ["H", *digits],
        [
            [name[2:], *(f"{x[column]:.{n}f}" for column, n in digits.items())]
            for name, x in chain.items()
        ],
    )
    return f"""## Appendix C: the bounds on the chain

Variance of Q(s_H, a_1) at the first step: the truth D, the exact equation W, the
paper's bound U and UBE's bound B. U stays within 7/6 of the truth at every horizon; B
grows with the square of the horizon.

{table}

![Bounds by horizon](uncertainty/appendix-c/appendix-c.png)

![The possible MDPs](uncertainty/appendix-c/possible-mdps.png)"""


def _histogram_part(scores: dict[str, Any]) -> str:
    tables = "\n\n".join(_score_table(name, found) for name, found in scores.items())
    verdicts = "\n".join(
        _verdict(name, found, stage)
        for name, found in scores.items()
        for stage in (FLAT, TIMED)
    )
    return f"""## Figure 1: error over uncertainty

![Histograms of error over uncertainty](uncertainty/figure-1/figure-1.png)

z is the real minus the imagined Q-value of a start state, divided by its estimated
uncertainty. Blue is the paper's setting taken literally: 15 epochs are 225 gradient
steps, V has hardly left its random start, and σ is far too small. Green is the paper's
V(s) trained until its loss is flat. Orange is a V(s, h) that is also told the step:
V(s) has to average over the steps that remain, and its slope, from which σ is made, is
wrong at most of them. Means over datasets; in brackets 95 % bootstrap intervals over
datasets.

{tables}

{verdicts}

![Coverage](uncertainty/figure-1/coverage.png)"""


def _code_part(folder: Path) -> list[str]:
    """Figure 1 as the published code reads it, once it was made."""
    if not (folder / "calibration.json").exists():
        return []
    scores = json.loads((folder / "calibration.json").read_text())
    config = json.loads((folder / "config.json").read_text())
    tables = "\n\n".join(_score_table(name, found) for name, found in scores.items())
    medians = "\n".join(
        f"- {TITLES.get(name, name)}, median over datasets of mean z²: "
        + ", ".join(
            f"{stage_title(stage)} {square:.3g}"
            for stage, square in found["median_z_squared"].items()
        )
        for name, found in scores.items()
    )
    return [
        f"""## Figure 1 as the published code reads it

![Histograms of error over uncertainty](uncertainty/figure-1-code/figure-1-code.png)

`{config["command"]}`: {config["settings"]["value_pool"]} trajectories are imagined once
and every epoch passes over all of them, the last layer of the random policy is small,
and the histogram ends at 2.5 with the rest rescaled; the share outside stands on it.

{tables}

{medians}"""
    ]


def _recalibrated_part(folder: Path) -> list[str]:
    """One scale for sigma on datasets that it has not seen, once it was made."""
    if not (folder / "recalibrated.json").exists():
        return []
    readings = json.loads((folder / "recalibrated.json").read_text())
    rows = [
        [
            f"{TITLES.get(name, name)}, {'text' if reading == 'figure-1' else 'code'}",
            stage_title(stage),
            f"{min(found['scale'][stage]):.2f} to {max(found['scale'][stage]):.2f}",
            *(
                cell
                for part in ("before", "after")
                for cell in (
                    f"{found[part][stage]['mean_z_squared']['mean']:.3g} "
                    f"({found[part][stage]['median_z_squared']:.3g})",
                    f"{found[part][stage]['coverage_90']['mean']:.0%}",
                    f"{found[part][stage]['gaussian_nll']['mean']:.2f}",
                )
            ),
        ]
        for reading, tasks in readings.items()
        for name, found in tasks.items()
        for stage in found["scale"]
    ]
    numbers = ["mean z² (median)", "in 90 %", "NLL"]
    after = [f"{number}, scaled" for number in numbers]
    table = markdown_table(["", "V", "c", *numbers, *after], rows)
    counts = " and ".join(
        str(number)
        for number in sorted(
            {x["datasets"] for tasks in readings.values() for x in tasks.values()}
        )
    )
    picture = "uncertainty/figure-1-recalibrated/figure-1-recalibrated.png"
    return [
        f"""## After recalibration

![Mean z² of every dataset](uncertainty/figure-1-recalibrated/z-squared.png)

One scale c for σ, with c² the mean z² of all *other* datasets (of {counts} per
environment), each with its own policy, data and models. Of a perfect ensemble of five
mean z² would be 1.5 (many independent steps) to 3 (one step), not 1. "In 90 %" is the
share of errors in the 90 % interval.

{table}

![Histograms after recalibration]({picture})"""
    ]


def _stages_part(folder: Path) -> list[str]:
    """Calibration of stored runs by training stage, once it was measured."""
    table = folder / "calibration-study.csv"
    return [stages_text(read_stages(table))] if table.exists() else []


def _doubt_part(summary: Path) -> list[str]:
    """Whether calibrated doubt learns better, once it was tried."""
    return [doubt_part(json.loads(summary.read_text()))] if summary.exists() else []


def _score_table(name: str, found: dict[str, Any]) -> str:
    header = ["", *SCORES.values()]
    rows = [
        [stage_title(stage), *(_interval(row[score]) for score in SCORES)]
        for stage, row in found["stages"].items()
    ]
    alone = found["members_rolled_alone"]
    rows.append(
        ["members rolled alone", *(_interval(alone[score]) for score in SCORES)]
    )
    return f"### {TITLES.get(name, name)}\n\n{markdown_table(header, rows)}"


def _verdict(name: str, found: dict[str, Any], stage: str) -> str:
    score = found["stages"][stage]["mean_z_squared"]
    low, high = WANTED
    inside = "inside" if low <= score["mean"] <= high else "outside"
    by_dataset = ", ".join(
        f"{x:.2f}" for x in found["mean_z_squared_by_dataset"][stage]
    )
    epochs = sorted(e[stage] for e in found["value_epochs"])
    return (
        f"- {TITLES.get(name, name)}, {stage_title(stage)} (after {epochs[0]} to "
        f"{epochs[-1]} epochs): mean z² is {_interval(score)}, {inside} "
        f"[{low}, {high}]; by dataset {by_dataset}."
    )


def _independence_part(scores: dict[str, Any]) -> str:
    columns = {
        "member variance / U": "member_variance_over_u",
        "squared error / member variance": "squared_error_over_member_variance",
        "error of Q (RMS)": "root_mean_square_error",
    }
    table = markdown_table(
        ["", *columns],
        [
            [TITLES.get(name, name), *(_interval(found[x]) for x in columns.values())]
            for name, found in scores.items()
        ],
    )
    by_dataset = markdown_table(
        ["", "member variance / U", "mean z², V(s, h)"],
        [
            [TITLES.get(name, name), f"{ratio:.1f}", f"{z:.2f}"]
            for name, found in scores.items()
            for ratio, z in sorted(
                zip(
                    found["member_variance_over_u_by_dataset"],
                    found["mean_z_squared_by_dataset"][TIMED],
                    strict=True,
                )
            )
        ],
    )
    members = len(next(iter(scores.values()))["model_loss"][0])
    return f"""## What decides mean z²: two errors of opposite sign

Algorithm 1 adds variances as if a model drew its mistakes anew at every step. A member
rolled alone repeats its own, so the members' returns vary more than U says: the first
column, with V(s, h). But the estimated Q is a mean over the members, whose mistakes
partly cancel: its squared error is only a fraction of the members' variance, about 1/K
if their mistakes are independent of each other: the second column.

{table}

The product of the two is what mean z² sees. Where it is near 1, the histogram is close
to N(0, 1); that is no evidence for independence across steps, which does not hold here.
Dataset by dataset, in the order of how far the mistakes persist:

{by_dataset}

Two things follow. On another task, policy or K the two need not cancel: look at
`pombu.uncertainty.diagnose` first. And `ddof=1`, right for members that are samples of
a posterior, would multiply every mean z² of U above by {1 - 1 / members:.2g}."""


def _scatter_part(pairs: dict[str, dict[str, float]]) -> str:
    numbers = "; ".join(
        f"{stage_title(stage)} {row['spearman']:.2f}" for stage, row in pairs.items()
    )
    return f"""## Error against uncertainty

500 start states of the first 2D dataset. Rank correlation of |error| and uncertainty
over all its start states: {numbers}.

![Error against uncertainty](uncertainty/figure-scatter/figure-scatter.png)"""


def _interval(x: dict[str, float]) -> str:
    return f"{x['mean']:.3g} [{x['low']:.3g}, {x['high']:.3g}]"


OVERVIEW = Reproduction(
    "overview",
    "writes OUT/README.md from the items that were done in OUT",
    "fast",
    reproduce=_write_overview,
)
UNCERTAINTY_PAGE = Reproduction(
    "uncertainty-page",
    "writes OUT/uncertainty.md from the three pictures in OUT/uncertainty",
    "paper",
    reproduce=_write_uncertainty_page,
)
