"""The hot loops beside the machine's limit and beside PyTorch."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any

from pombu.benchmarks.timing import Times, Work, take_turns
from pombu.benchmarks.workload import Workload, operations

Figures = dict[str, Any]

WITHOUT_PYTORCH = (
    "PyTorch is not installed, so nothing is compared with it: "
    "pip install 'pombu[baselines]'"
)


@dataclass(frozen=True)
class Loop:
    """One piece of work and how much there is in it."""

    name: str
    work: Work
    unit: str
    amount: int
    operations: int
    """Per unit, in matrix products."""


def loops(work: Workload) -> list[Loop]:
    """Imagination, fit, and the update of policy and value."""
    config, task = work.config, work.learner.task
    count = operations(task, config)
    batch = work.batch
    steps = config.imagination.trajectories * task.horizon
    fitted = config.model.members * work.fit_steps * config.model.batch_size
    samples = config.policy.epochs * len(batch.weight)
    return [
        Loop("imagination", work.imagine, "steps", steps, count.imagined_step),
        Loop("fit", work.fit, "transitions", fitted, count.fitted_row),
        Loop(
            "update",
            lambda: work.improve(batch),
            "samples",
            samples,
            count.updated_sample,
        ),
    ]


def compare(
    work: Workload,
    limits: dict[str, float],
    repeats: int,
    budget: float,
    say: Callable[[str], None],
) -> Figures:
    """Speed, share of the limit and times faster than PyTorch of each loop.

    Args:
        work: sizes and data.
        limits: of the machine; bfloat16 is tried where its limit is the higher one.
        repeats: rounds per loop.
        budget: seconds per loop after which no further round begins.
        say: told what is being measured.
    """
    references = _references(work)
    if references is None:
        say(WITHOUT_PYTORCH)
    figures: Figures = {}
    for loop in loops(work):
        say(loop.name)
        pieces = {"ours": loop.work}
        if references is not None:
            pieces["pytorch"] = references[loop.name]
        if loop.name == "imagination" and limits["bf16_gflops"] > limits["f32_gflops"]:
            pieces["bfloat16"] = _in_bfloat16(work).imagine
        times = take_turns(pieces, repeats, budget)
        figures[loop.name] = _figures(loop, times, "ours", limits["f32_gflops"])
        if "bfloat16" in pieces:
            figures[loop.name]["bfloat16"] = _figures(
                loop, times, "bfloat16", limits["f32_gflops"]
            )
    return figures


def _figures(loop: Loop, times: Times, piece: str, f32_gflops: float) -> Figures:
    spent = times.median(piece)
    compared = "pytorch" in times.rounds
    return {
        "seconds": spent,
        "per_s": 1.0 / spent,
        f"{loop.unit}_per_s": loop.amount / spent,
        "share_of_limit": loop.amount * loop.operations / spent / 1e9 / f32_gflops,
        "pytorch_seconds": times.median("pytorch") if compared else None,
        "vs_pytorch": times.ratio("pytorch", piece) if compared else None,
    }


def _references(work: Workload) -> dict[str, Work] | None:
    """The same loops in PyTorch, if it is installed."""
    if find_spec("torch") is None:
        return None
    from pombu.benchmarks import reference

    return reference.pieces(work)


def _in_bfloat16(work: Workload) -> Workload:
    return replace(work, rules=replace(work.rules, precision="bfloat16"))
