"""What `pombu train` says of an environment that is not pombu's own, and of a guard."""

from typing import Any

from pombu.dynamics.model import require_reward
from pombu.envs import CATALOGUE, Report, Task, check
from pombu.errors import UsageError

CHECK_STEPS, CHECK_RESETS = 100, 20
"""Real steps and resets of the check before training; they are not learned from."""
TOLERATED = ("determinism", "start distribution")
"""Findings that a run can live with: they are told, and training begins."""


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
    most = config.trajectories * task.horizon
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
