"""Before a training begins: a quick check of the environment, and what will be used."""

from typing import Any

from pombu.envs import CATALOGUE, Report, Task, check
from pombu.errors import UsageError
from pombu.worlds import require_reward

STEPS, RESETS = 100, 20
"""Real steps and resets that the quick check takes; they are not learned from."""

BEARABLE = ("determinism", "start distribution")
"""Findings that a run can live with: they are told, and training begins."""


def brief(task: Task, config: Any) -> list[str]:
    """What pombu will use in an environment that is not its own, line by line.

    Raises:
        UsageError: The check found what would spoil the run, or the reward is to be
            known and is not.
    """
    if any(entry.id == task.config.id for entry in CATALOGUE):
        return []
    model: Any = getattr(config, "model", None)
    if hasattr(model, "reward"):
        require_reward(task, model.reward)
    report = check(task, STEPS, resets=RESETS)
    for finding in report.findings:
        if finding.verdict == "fail" and finding.subject not in BEARABLE:
            raise UsageError(
                f"{task.config.id} failed the check of its {finding.subject} "
                f"({finding.detail}): mend it, `pombu check-env {task.config.id}` says "
                "more; or train all the same with --no-check."
            )
    return [
        _sizes(task),
        *_model(task, config, report),
        _steps(task, config),
        *_warnings(report),
    ]


def _sizes(task: Task) -> str:
    box = task.action_box
    bounds = {
        f"[{low:g}, {high:g}]" for low, high in zip(box.low, box.high, strict=True)
    }
    within = f"in {bounds.pop()}" if len(bounds) == 1 else "in bounds of their own"
    return (
        f"{task.config.id}: {task.observation_dim} observed numbers, "
        f"actions of {task.action_dim} {within}, episodes of at most "
        f"{task.horizon} steps."
    )


def _model(task: Task, config: Any, report: Report) -> list[str]:
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


def _steps(task: Task, config: Any) -> str:
    """What an iteration costs in the real environment."""
    most = config.trajectories * task.horizon
    least = getattr(config, "least_steps", 0)
    number = config.evaluation_episodes
    learned = (
        f"  an iteration: {'at least' if least else 'up to'} {least or most:,} "
        "real steps to learn from"
    )
    if not number:
        return f"{learned}."
    measured = (
        f"{2 * number} more episodes to measure the policy with and without its noise"
    )
    if hasattr(config, "planner"):  # which has none
        measured = f"{number} more episodes to measure the planner"
    return (
        f"{learned}, and {measured}, which are not counted (`--evaluation-episodes`)."
    )


def _warnings(report: Report) -> list[str]:
    return [
        f"  note: {finding.subject}: {finding.detail}."
        for finding in report.findings
        if finding.verdict != "pass"
    ]
