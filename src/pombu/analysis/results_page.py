"""Results pages: Markdown about kept runs, written by a command from their files.

What a run leaves for others to check (config, versions, metrics, evaluation) is copied
beside the page, under its task's name; the page can be written again from those copies
alone. There is a section for every task, horizon and observation noise.
"""

import json
import posixpath
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from pombu.algorithms import registry
from pombu.algorithms.registry import defaults
from pombu.analysis.curves import Curve, by_label, read_curves
from pombu.analysis.plots import draw_learning, markdown_table, save_figure
from pombu.envs import EnvConfig, short_name
from pombu.envs.catalogue import find_entry
from pombu.errors import UsageError
from pombu.files import safe_name, sealed, write_atomic
from pombu.training.config_file import flat, from_json, to_json
from pombu.training.run import (
    CONFIG,
    EVALUATION,
    METRICS,
    VERSIONS,
    RunSpec,
    write_json,
)


class Published(NamedTuple):
    """Return of a method in a paper: mean and standard deviation over seeds."""

    mean: float
    std: float
    hours: float | None = None
    """On one GPU."""
    imagined_steps: float | None = None
    real_steps: float = 2e5


@dataclass(frozen=True)
class Goal:
    """A return to reach, and within how many real steps."""

    target: float
    steps: int
    published: str = ""
    """What others report of SAC."""


PublishedFor = Callable[[Curve], Mapping[str, Published]]
"""Looks up the published numbers for a run's task and its settings, by algorithm."""

GOALS = {
    "Pendulum-v1": Goal(
        -250,
        20_000,
        "SAC by Stable-Baselines3 has -157 ± 89 after 20,000 real steps (one run, RL "
        "Baselines3 Zoo's benchmark.md).",
    ),
    "InvertedPendulum-v5": Goal(900, 20_000),
    "Reacher-v5": Goal(-6, 50_000),
}
"""Returns to reach on tasks outside the catalogue."""


KEPT = (CONFIG, VERSIONS, METRICS, EVALUATION)
REMARKS = "remarks.md"
"""A file in the folder that the page repeats: what numbers alone do not say."""


@dataclass(frozen=True)
class TaskSection:
    """The runs of one task as it was set, with what there is to compare them with."""

    name: str
    curves: list[Curve]
    paper: Mapping[str, Published]
    goal: Goal | None

    @property
    def target(self) -> tuple[str, float] | None:
        """A return to compare with, and what it is."""
        if self.goal is not None:
            return "target", self.goal.target
        if "pombu" in self.paper:
            return "the paper's POMBU at 200k", self.paper["pombu"].mean
        return None


def keep(runs: Sequence[Path], folder: Path) -> list[Path]:
    """Copy what runs leave for others to check; give all kept runs of the folder.

    Raises:
        UsageError: A folder is no run, or would take another run's place.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for curve in read_curves(runs):
        spec = curve.run.spec
        name = f"{spec.algorithm}-{spec.preset}-{_reward(curve)}seed{spec.seed}"
        kept = folder / _setting(curve) / name
        if (kept / CONFIG).exists():
            _require_progress(kept, curve)
        keep_files(curve, kept)
    return _kept(folder)


def keep_files(curve: Curve, kept: Path) -> None:
    """Copy what a run leaves for others to check."""
    if kept.resolve() == curve.run.path.resolve():
        return
    kept.mkdir(parents=True, exist_ok=True)
    for file in KEPT:
        if (curve.run.path / file).exists():
            write_atomic(kept / file, (curve.run.path / file).read_bytes())
        else:
            (kept / file).unlink(missing_ok=True)
    if (kept / VERSIONS).exists():
        write_json(kept / VERSIONS, list(map(sealed, _versions(curve))))


def write_page(
    folder: Path,
    title: str,
    command: str,
    published_for: PublishedFor,
    up_to: int | None = None,
) -> Path:
    """Draw the kept runs, task by task, and write the page beside the folder.

    Args:
        folder: of the kept runs.
        title: the page's heading.
        command: that writes the page again.
        published_for: the paper's numbers to compare a run with, if it has any.
        up_to: real steps at which longer runs are cut.
    """
    curves = read_curves(_kept(folder))
    if up_to is not None:
        curves = [curve.until(up_to) for curve in curves]
    remarks = _remarks(folder)
    lines = [
        f"# {title}",
        "",
        f"Written by `{command}` from the files in [{folder.name}/]({folder.name}/).",
        *(["", remarks] if remarks else []),
        "",
        "A policy is evaluated after every iteration. `return` and `deterministic` "
        "are means of the last three evaluations, with and without its noise; "
        "`best` is the best evaluation with noise, and `needed` counts the real steps "
        "before the first one that reached the target. Hours are wall-clock."
        + ("" if up_to is None else f" Longer runs are cut at {up_to:,} real steps."),
    ]
    for name in dict.fromkeys(map(_setting, curves)):
        own = [curve for curve in curves if _setting(curve) == name]
        paper, goal = published_for(own[0]), GOALS.get(own[0].task)
        lines += ["", *_written(folder, TaskSection(name, own, paper, goal))]
    # A run may have been kept without the file that tells of its starts.
    versions: dict[str, Any] = next(reversed(_versions(curves[0])), {})
    versions.pop("command", None)
    lines += ["", f"Versions and machine of the first run: `{json.dumps(versions)}`"]
    page = folder.with_suffix(".md")
    page.write_text("\n".join(lines) + "\n")
    return page


def _remarks(folder: Path) -> str:
    """The remarks, with links that lead to the same places from beside the folder."""
    path = folder / REMARKS
    if not path.exists():
        return ""

    def moved(link: re.Match[str]) -> str:
        return f"]({posixpath.normpath(f'{folder.name}/{link[1]}')})"

    return re.sub(r"\]\((?![a-z]+:|[#/])([^)\s]+)\)", moved, path.read_text().strip())


def _written(folder: Path, section: TaskSection) -> list[str]:
    goal, target = section.goal, section.target
    own = folder / section.name
    save_figure(draw_learning(section.curves, target), own, "returns")
    lines = [f"## {section.name}", ""]
    if goal is not None:
        lines += [f"Target: {goal.target:g} within {goal.steps:,} real steps."]
        lines += [*([goal.published] if goal.published else []), ""]
    elif target is not None:
        lines += [f"Target: {target[1]:g}, {target[0]} real steps.", ""]
    lines += [f"![Learning curves]({folder.name}/{section.name}/returns.png)", ""]
    lines += [_table(section)]
    commands = [_command(curve) for curve in section.curves]
    return [*lines, "", "```", *commands, "```"]


def _table(section: TaskSection) -> str:
    paper, target = section.paper, section.target
    titles = ["run", "seed", "real steps", "imagined steps"]
    titles += ["needed"] if target else []
    titles += ["return", "deterministic", "best", "hours"]
    titles += ["the paper at 200k", "its imagined steps", "its hours"] if paper else []
    rows = []
    for label, group in by_label(section.curves).items():
        for curve in group:
            row = [label, *_counted(curve)]
            if target is not None:
                reached = curve.needed(target[1])
                row.append("not reached" if reached is None else f"{reached:,}")
            row += _measured(curve)
            if paper:
                row += _beside(paper.get(curve.run.spec.algorithm))
            rows.append(row)
    return markdown_table(titles, rows)


def _counted(curve: Curve) -> list[str]:
    done = "" if curve.finished else " (unfinished)"
    imagined = curve.rows[-1].get("imagined_steps", 0.0)
    return [
        str(curve.run.spec.seed),
        f"{curve.rows[-1]['real_steps']:,.0f}{done}",
        f"{imagined:.2g}",
    ]


def _measured(curve: Curve) -> list[str]:
    return [
        f"{curve.final():.4g}",
        f"{curve.final('return_deterministic'):.4g}",
        f"{curve.best:.4g}",
        f"{curve.hours:.2f}",
    ]


def _beside(published: Published | None) -> list[str]:
    if published is None:
        return ["", "", ""]
    imagined, hours = published.imagined_steps, published.hours
    return [
        f"{published.mean:g} ± {published.std:g}",
        "" if imagined is None else f"{imagined:.2g}",
        "" if hours is None else f"{hours:g}",
    ]


def _command(curve: Curve) -> str:
    """The run's own command without its folder, or one that asks for the same."""
    starts = _versions(curve)
    given = starts[0]["command"][1:] if starts else []
    if given[:1] != ["train"]:
        return train_command(curve.run.spec)
    words = _without("--total-steps", _without("--out", given))
    # A run may have been taken further than its first command asked for.
    steps = ["--total-steps", str(curve.run.spec.total_steps)]
    return shlex.join(["pombu", *words, *steps])


def _without(option: str, words: list[str]) -> list[str]:
    """A command without an option and its value."""
    if option in words:
        at = words.index(option)
        words = [*words[:at], *words[at + 2 :]]
    return [word for word in words if not word.startswith(f"{option}=")]


def _versions(curve: Curve) -> list[dict[str, Any]]:
    """Versions of a run's starts; the user's folders are left out."""
    return [
        {**start, "command": [_without_folder(word) for word in start["command"]]}
        for start in curve.run.starts()
    ]


def _without_folder(word: str) -> str:
    option, equals, value = word.rpartition("=")
    return option + equals + (Path(value).name if Path(value).is_absolute() else value)


def _reward(curve: Curve) -> str:
    """`known-`, `learned-`, or nothing where a run has no model of the reward."""
    model = curve.run.spec.config.get("model", {})
    return f"{model['reward']}-" if "reward" in model else ""


def _setting(curve: Curve) -> str:
    """A task's name, with whatever of its settings is not its own."""
    env = from_json(EnvConfig, curve.run.spec.config["env"], "env")
    return safe_name("-".join([curve.task, *env.labels]))


def _require_progress(kept: Path, curve: Curve) -> None:
    """Refuse a run that is not the kept one, or not as far."""
    (other,) = read_curves([kept])
    if other.run.spec.config != curve.run.spec.config:
        raise UsageError(
            f"{kept} keeps a run with other settings than {curve.run.path}: choose "
            "another --out, or remove it."
        )
    if other.rows[-1]["real_steps"] > curve.rows[-1]["real_steps"]:
        raise UsageError(
            f"{kept} keeps a longer run than {curve.run.path}: name that one, or "
            "remove the kept one."
        )


def _kept(folder: Path) -> list[Path]:
    return sorted(path.parent for path in folder.glob(f"*/*/{CONFIG}"))


def train_command(spec: RunSpec) -> str:
    """A `pombu train` that asks for the same run.

    Options are those in which it differs from its preset as that is today. A task that
    is code outside pombu is not made for this, and none of its options are named.
    """
    env = from_json(EnvConfig, spec.config["env"], "env")
    name = short_name(env.id) if find_entry(env.id) else env.id
    words = ["pombu", "train", "--algo", spec.algorithm, "--env", name]
    words += ["--preset", spec.preset, "--seed", str(spec.seed)]
    words += ["--total-steps", str(spec.total_steps)]
    for option, value in env.changed.items():
        plain = f"{value:g}" if isinstance(value, float) else value
        words += _flag(option.replace("_", "-"), plain)
    return shlex.join([*words, *_changes(spec)])


def _changes(spec: RunSpec) -> list[str]:
    env = spec.config["env"]
    if ":" in env["id"]:
        return []
    usual = registry.preset(spec.algorithm, spec.preset, env["id"], env.get("horizon"))
    today = flat(to_json(usual))
    # What a run does not say, because its version did not know of it, is the default.
    have = {**defaults(spec.algorithm), **flat(spec.config)}
    words = []
    for key, value in have.items():
        if not key.startswith("env.") and key in today and value != today[key]:
            words += _flag(key.replace("_", "-"), value)
    return words


def _flag(name: str, value: Any) -> list[str]:
    if isinstance(value, bool):
        *parents, last = name.split(".")
        return [f"--{'.'.join([*parents, last if value else f'no-{last}'])}"]
    if isinstance(value, list | tuple):
        return [f"--{name}", *map(str, value)]
    return [f"--{name}", str(value)]
