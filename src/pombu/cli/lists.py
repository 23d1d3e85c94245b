"""Commands about what there is to choose from: `pombu envs`, `presets`, `check-env`.

`pombu train` looks at an environment that is not pombu's before it begins as well.
"""

import dataclasses
import json
from typing import Annotated, Any

import tyro

from pombu.cli.parsing import ENV_OPTIONS, EnvOptions
from pombu.envs import CATALOGUE, Report, Task, check, load, resolve
from pombu.errors import UsageError

NOTES = (
    "\ns is the state, a the action, v_x the forward velocity, z the height. "
    "HalfCheetah is short for the Gymnasium id pombu/HalfCheetah-v0, and so on. An "
    "alive bonus of 1 gives the reward behind the published numbers of Ant and "
    "Walker2d. Any Gymnasium id or module:factory works as well: try "
    "`pombu check-env Pendulum-v1`."
)


@dataclasses.dataclass(frozen=True)
class Envs:
    """List the tasks with observation and action sizes, horizon and reward formula.

    Any other Gymnasium id, or `module:factory`, can be given where a task is named;
    `pombu check-env` tells what pombu will make of it.

    Examples:
      pombu envs
      pombu envs --json
      pombu train --env HalfCheetah
      pombu train --env Pendulum-v1
    """

    json: bool = False
    """Print JSON for other programs instead of a table."""

    def run(self) -> int:
        """Print the list."""
        if self.json:
            print(_tasks_json())
        else:
            _print_tasks()
        return 0


def _tasks_json() -> str:
    """The catalogue as JSON."""
    tasks = [
        {
            "name": entry.name,
            "id": entry.id,
            "observations": entry.observation_dim,
            "actions": entry.action_dim,
            "horizon": entry.horizon,
            "reward": entry.reward,
        }
        for entry in CATALOGUE
    ]
    return json.dumps(tasks, indent=2)


def _print_tasks() -> None:
    """The catalogue for people."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, header_style="bold")
    table.add_column("task", no_wrap=True)
    for heading in ("observations", "actions", "horizon"):
        table.add_column(heading, justify="right")
    table.add_column("reward per step", no_wrap=True)
    for entry in CATALOGUE:
        sizes = (entry.observation_dim, entry.action_dim, entry.horizon)
        table.add_row(entry.name, *map(str, sizes), entry.reward)
    console = Console()
    console.print(table)
    console.print(NOTES, highlight=False)


@dataclasses.dataclass(frozen=True)
class Presets:
    """List the presets of an algorithm, side by side for one task.

    Any value can be overridden by the flag of its name in `pombu train`.

    Examples:
      pombu presets
      pombu presets --env Ant --horizon 1000
      pombu presets --env HalfCheetah --preset paper --json
    """

    env: str = "HalfCheetah"
    """The task."""
    algo: str = "pombu"
    """The algorithm."""
    preset: str | None = None
    """Show only this one."""
    horizon: int | None = None
    """Steps per episode; the paper has other values for 1000 than for 200."""
    json: bool = False
    """Print one JSON object instead of a table."""

    def run(self) -> int:
        """Print the values."""
        from pombu.algorithms import registry
        from pombu.algorithms.registry import find
        from pombu.training import config_file

        find(self.algo)
        env = resolve(self.env)
        names = [self.preset] if self.preset else list(registry.PRESETS)
        columns = {
            name: registry.preset(self.algo, name, env, self.horizon) for name in names
        }
        columns = {k: config_file.to_json(config) for k, config in columns.items()}
        if self.json:
            print(json.dumps(columns))
        else:
            _show_presets(self.algo, env, columns)
        return 0


def _show_presets(algorithm: str, env: str, columns: dict[str, dict[str, Any]]) -> None:
    """Print one row per field and one column per preset."""
    from rich.console import Console
    from rich.table import Table

    from pombu.algorithms.registry import ALGORITHMS
    from pombu.training import config_file

    table = Table(box=None, title=f"{algorithm} on {env}")
    for title in ("field", *columns):
        table.add_column(title, no_wrap=True)
    flat = {name: config_file.flat(config) for name, config in columns.items()}
    for field in next(iter(flat.values())):
        if field == "env.id":
            continue
        table.add_row(field, *(_spell(values.get(field)) for values in flat.values()))
    console = Console()
    console.print(table)
    tasks = ", ".join(entry.name for entry in CATALOGUE)
    console.print(
        f"\nTasks: {tasks}. Algorithms: {', '.join(ALGORITHMS)}.", highlight=False
    )


def _spell(value: Any) -> str:
    """A value as one would type it."""
    if isinstance(value, list | tuple):
        return " ".join(map(str, value))
    return f"{value:.6g}" if isinstance(value, float) else str(value)


CHECK_STEPS, CHECK_RESETS = 100, 20
"""Real steps and resets of the check before training; they are not learned from."""
TOLERATED = ("determinism", "start distribution")
"""Findings that a run can live with: they are told, and training begins."""

COLOURS = {"pass": "green", "warn": "yellow", "fail": "red"}


@dataclasses.dataclass(frozen=True)
class CheckEnv:
    """Take real steps in an environment and compare them with its contract.

    Compared are reward, termination, start distribution, bounds, dtypes and determinism
    under a seed. For an environment without a contract it says what pombu will do
    instead. The exit code is 1 if anything failed.

    Examples:
      pombu check-env HalfCheetah
      pombu check-env Ant --alive-bonus 1 --horizon 1000
      pombu check-env Pendulum-v1 --steps 1000
      pombu check-env my_module:make_env --json
    """

    env: Annotated[str, tyro.conf.Positional]
    """Task of pombu, Gymnasium id, or module:factory."""

    options: Annotated[EnvOptions, tyro.conf.arg(name="")] = ENV_OPTIONS

    steps: int = 300
    """Real steps to compare."""

    seed: int = 0
    """Seed of the first episode."""

    json: bool = False
    """Print JSON for other programs instead of a table."""

    def run(self) -> int:
        """Check, print, and tell by the exit code whether anything failed."""
        report = check(load(self.options.of(self.env)), self.steps, self.seed)
        if self.json:
            verdict = {"passed": report.passed, **dataclasses.asdict(report)}
            print(json.dumps(verdict, indent=2))
        else:
            _print_report(report)
        return 0 if report.passed else 1


def _print_report(report: Report) -> None:
    """The findings for people."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for finding in report.findings:
        colour = COLOURS[finding.verdict]
        verdict = f"[{colour}]{finding.verdict}[/{colour}]"
        table.add_row(verdict, finding.subject, finding.detail)
    console = Console()
    console.print(f"{report.id}, {report.steps} random steps", highlight=False)
    console.print(table)


def describe_guard(algorithm: str, config: Any) -> str:
    """What keeps a policy where the data are, while no real step corrects it."""
    for name in ("alpha", "kappa"):
        weight = getattr(config, name, None)
        if weight is None:
            continue
        if weight >= 1:
            return f"  guard: {name} = {weight:g} times sqrt(U) counts against gain."
        return (
            f"  note: {name} is {weight:g}, which no real step makes up for: "
            f"`--{name} 2` keeps {algorithm} from what the model only imagines."
        )
    if config.branch.disagreement_stop is not None:
        stop = config.branch.disagreement_stop
        return (
            "  guard: branches stop where members disagree more than about a share of "
            f"{stop:g} of the data (`--branch.disagreement-stop`)."
        )
    return (
        f"  note: {algorithm} has no penalty for uncertainty: try "
        "`--branch.disagreement-stop 1`, which stops branches where members disagree "
        "more than about any logged step."
    )


def check_and_describe(
    task: Task, config: Any, share: float | None = None
) -> list[str]:
    """What pombu will use in an environment that is not its own, line by line.

    Raises:
        UsageError: The check found what would spoil the run, or the reward is to be
            known and is not.
    """
    from pombu.dynamics.model import require_reward

    if any(entry.id == task.config.id for entry in CATALOGUE):
        return []
    model: Any = getattr(config, "model", None)
    if hasattr(model, "reward"):
        require_reward(task, model.reward)
    report = check(task, CHECK_STEPS, resets=CHECK_RESETS)
    for finding in report.findings:
        if finding.verdict == "fail" and finding.subject not in TOLERATED:
            raise UsageError(
                f"{task.config.id} failed the check of its {finding.subject} "
                f"({finding.detail}): fix it, `pombu check-env {task.config.id}` says "
                "more; or train all the same with --no-check."
            )
    return [
        _describe_sizes(task),
        *_describe_model(task, config, report),
        _describe_steps(task, config, share),
        *_describe_warnings(report),
    ]


def _describe_sizes(task: Task) -> str:
    box = task.action_box
    bounds = {
        f"[{low:g}, {high:g}]" for low, high in zip(box.low, box.high, strict=True)
    }
    within = f"in {bounds.pop()}" if len(bounds) == 1 else "in bounds of their own"
    flattened = ""
    if task.layout is not None:
        parts = getattr(task.layout, "spaces", ())
        named = f" of {', '.join(parts)}" if isinstance(parts, dict) else ""
        flattened = f" (flattened from a {type(task.layout).__name__}{named})"
    return (
        f"{task.config.id}: {task.observation_dim} observed numbers{flattened}, "
        f"actions of {task.action_dim} {within}, episodes of at most "
        f"{task.horizon} steps."
    )


def _describe_model(task: Task, config: Any, report: Report) -> list[str]:
    """Where reward, ends and starts of imagined trajectories come from."""
    model: Any = getattr(config, "model", None)
    if not hasattr(model, "reward"):
        return []
    details = {finding.subject: finding.detail for finding in report.findings}
    seen = details["reward"].partition("(seen: ")[2].rstrip(")")
    reward = "the environment's own function, which the check confirmed."
    if model.reward == "learned":
        reward = "learned beside the dynamics" + (f"; seen {seen}." if seen else ".")
    ends = "learned from real episodes that terminate; until one does, none."
    if getattr(model, "termination", "known") == "known":
        ends = "the environment's own function."
        if "terminal" not in task.known:
            ends = "none: no imagined trajectory ends before its time limit."
    starts = "the environment's own distribution."
    if "initial" not in task.known:
        starts = "resets that were observed."
    share = getattr(getattr(config, "imagination", None), "real_starts", 0.0)
    if share:
        starts = f"{starts[:-1]}, and for {share:.0%} other real states."
    return [f"  reward: {reward}", f"  termination: {ends}", f"  starts: {starts}"]


def _describe_steps(task: Task, config: Any, share: float | None) -> str:
    """What an iteration costs in the real environment."""
    from pombu.algorithms.config import collected_steps

    most = config.trajectories * collected_steps(config, task.horizon)
    least = getattr(config, "least_steps", 0)
    number = config.evaluation_episodes
    learned = (
        f"  an iteration: {'at least' if least else 'up to'} {least or most:,} "
        "real steps to learn from"
    )
    if not number:
        return f"{learned}."
    if share is not None:
        return (
            f"{learned}; evaluation steps are not counted and are about {share:.0%} as "
            "many (`--evaluation-share`)."
        )
    measured = (
        f"{2 * number} more episodes to measure the policy with and without its noise"
    )
    if hasattr(config, "planner"):  # which has none
        measured = f"{number} more episodes to measure the planner"
    return (
        f"{learned}, and {measured}, which are not counted (`--evaluation-episodes`)."
    )


def _describe_warnings(report: Report) -> list[str]:
    return [
        f"  note: {finding.subject}: {finding.detail}."
        for finding in report.findings
        if finding.verdict != "pass"
    ]
