"""`pombu bench`: speed on this machine, beside its limit and plain PyTorch."""

import json
import sys
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Bench:
    """Measure how fast imagination, fit and update are on this machine.

    The sizes are the paper's HalfCheetah. Each is shown as a share of what large matrix
    products reach here and, where PyTorch is installed, beside the same work written
    plainly in it. Close other programs first: two cores are quickly disturbed.

    Examples:
      pombu bench
      pombu bench --quick
      pombu bench --quick --json > speed.json
    """

    json: bool = False
    """Print one JSON object instead of a table."""

    quick: bool = False
    """Finish within four minutes: fewer repeats, and one fit plus one update instead of
    whole iterations to see how time grows with data."""

    def run(self) -> int:
        """Measure and print."""
        import jax

        from pombu.bench import suite

        # A program compiled by an earlier run would hide the time that it takes.
        jax.config.update("jax_enable_compilation_cache", False)
        figures = suite.run(suite.QUICK if self.quick else suite.FULL, say)
        if self.json:
            print(json.dumps(figures))
        else:
            show(figures)
        return 0


def say(what: str) -> None:
    """Tell on stderr what is going on; stdout belongs to the figures."""
    print(f"measuring: {what}", file=sys.stderr, flush=True)


def show(figures: dict[str, Any]) -> None:
    """Print the figures for people."""
    from rich.console import Console
    from rich.table import Table

    table = Table("what", "measured", "of the limit", "vs PyTorch", box=None)
    limit = figures["limit"]
    table.add_row("matrix products, float32", f"{limit['f32_gflops']:.0f} GFLOP/s")
    table.add_row("matrix products, bfloat16", f"{limit['bf16_gflops']:.0f} GFLOP/s")
    for name, unit in (
        ("imagination", "steps"),
        ("fit", "transitions"),
        ("update", "samples"),
    ):
        part = figures[name]
        faster = part["vs_pytorch"]
        table.add_row(
            name,
            f"{part[f'{unit}_per_s']:,.0f} {unit}/s",
            f"{part['share_of_limit']:.2f}",
            f"{faster:.2f}x" if faster is not None else "not installed",
        )
    table.add_row("whole update", f"{figures['uncertainty']['with_seconds']:.2f} s")
    table.add_row("the uncertainty adds", f"{figures['uncertainty']['overhead']:.1%}")
    table.add_row("POMBU over MEPPO", f"{figures['pombu_over_meppo']:.2f}x")
    for name, speed in figures["baselines"].items():
        table.add_row(name, f"{speed['steps_per_s']:,.0f} imagined steps/s")
    for name, unit in (
        ("pets", "actions"),
        ("steve", "updates"),
        ("mbmpo", "meta-steps"),
    ):
        part = figures[name]
        share = f"{part['share_of_limit']:.2f}"
        table.add_row(name, f"{part['per_s']:,.3g} {unit}/s", share)
    iteration = figures["iteration"]
    for size, spent in iteration["seconds"].items():
        table.add_row(
            f"{iteration['measured']} at {int(size):,} steps", f"{spent:.1f} s"
        )
    growth = iteration["growth_200k_over_20k"]
    table.add_row("growth, 200k over 20k", f"{growth:.2f}x")
    table.add_row("compiling an iteration", f"{figures['compile']['seconds']:.1f} s")
    table.add_row("peak memory", f"{figures['memory']['peak_mb']:,.0f} MB")
    for name, speed in figures["collection"].items():
        table.add_row(
            f"collection, {name}",
            f"{speed['batched_steps_per_s']:,.0f} steps/s batched, "
            f"{speed['single_steps_per_s']:,.0f} single ({speed['ratio']:.1f}x)",
        )
    Console().print(table)
