"""Commands about this machine: `pombu doctor` and `pombu bench`."""

import dataclasses
import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from pombu.parallel import usable_cores

CORE = (
    "jax",
    "jaxlib",
    "equinox",
    "optax",
    "numpy",
    "gymnasium",
    "mujoco",
    "tyro",
    "rich",
    "safetensors",
    "matplotlib",
)
EXTRAS = {
    "baselines": ("sbx-rl",),
    "tensorboard": ("tensorboardX",),
    "wandb": ("wandb",),
    "ray": ("ray",),
    "tune": ("optuna",),
    "onnx": ("onnx",),
    "minari": ("minari", "h5py"),
    "report": ("plotly", "imageio", "imageio-ffmpeg"),
}
LITTLE_DISK_GB = 2.0

RENDER_ONE_FRAME = """
import mujoco
model = mujoco.MjModel.from_xml_string(
    "<mujoco><worldbody><light pos='0 0 1'/><geom size='.1'/></worldbody></mujoco>"
)
with mujoco.Renderer(model, 32, 32) as renderer:
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    renderer.update_scene(data)
    raise SystemExit(0 if renderer.render().any() else 1)
"""


@dataclasses.dataclass(frozen=True)
class Finding:
    """One thing looked at: its state, and the remedy where there is one."""

    subject: str
    state: str
    remedy: str = ""
    required: bool = False


@dataclasses.dataclass(frozen=True)
class Doctor:
    """Show versions, device, threads, rendering, free disk and optional extras.

    Says what is missing and how to get it. The exit code is 1 when something that
    training needs is missing.

    Examples:
        pombu doctor
        pombu doctor --json
    """

    json: bool = False
    """Print one JSON object instead of a table."""

    def run(self) -> int:
        """Look at everything and print what was found."""
        findings = examine()
        if self.json:
            print(json.dumps([dataclasses.asdict(found) for found in findings]))
        else:
            show(findings)
        return int(any(found.required and found.remedy for found in findings))


def examine() -> list[Finding]:
    """Everything `pombu doctor` looks at, in the order it is shown."""
    return [
        Finding("python", f"{platform.python_version()} on {platform.platform()}"),
        *(package(name) for name in ("pombu", *CORE)),
        device(),
        threads(),
        rendering(),
        disk(Path.cwd()),
        *(extra(name, packages) for name, packages in EXTRAS.items()),
    ]


def _version(package: str) -> str | None:
    """A package's installed version."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def package(name: str) -> Finding:
    """A package without which pombu does not run."""
    found = _version(name)
    remedy = "" if found else f"pip install {name}"
    return Finding(name, found or "missing", remedy, required=True)


def extra(name: str, packages: tuple[str, ...]) -> Finding:
    """An optional group of packages."""
    missing = [package for package in packages if _version(package) is None]
    if missing:
        return Finding(
            f"extra: {name}",
            f"missing {', '.join(missing)}",
            f"pip install 'pombu[{name}]'",
        )
    versions = ", ".join(f"{package} {_version(package)}" for package in packages)
    return Finding(f"extra: {name}", versions)


def device() -> Finding:
    """What JAX computes on."""
    try:
        import jax

        kinds = [f"{d.platform} ({d.device_kind})" for d in jax.devices()]
    except Exception as error:
        reason = " ".join(str(error).split())
        return Finding("device", reason, "set JAX_PLATFORMS=cpu", required=True)
    return Finding("device", ", ".join(kinds), required=True)


def threads() -> Finding:
    """The cores this process may use; JAX starts as many threads."""
    return Finding("threads", f"{usable_cores()} of {os.cpu_count() or 1} cores")


def rendering() -> Finding:
    """The first rendering backend that draws a frame.

    Each is tried in a process of its own, because a broken driver may abort it.
    """
    chosen = os.environ.get("MUJOCO_GL")
    for backend in [chosen] if chosen else ["egl", "osmesa", "glfw"]:
        attempt = subprocess.run(
            [sys.executable, "-c", RENDER_ONE_FRAME],
            env={**os.environ, "MUJOCO_GL": backend},
            capture_output=True,
            check=False,
        )
        if attempt.returncode == 0:
            return Finding("rendering", backend)
    return Finding(
        "rendering",
        f"not with {chosen}" if chosen else "not with egl, osmesa or glfw",
        "install libegl1 or libosmesa6 (Debian, Ubuntu) and set MUJOCO_GL to egl or "
        "osmesa; only videos need it",
    )


def disk(folder: Path) -> Finding:
    """Free space where runs are written."""
    free = shutil.disk_usage(folder).free / 1e9
    remedy = "free some space: a long run takes about 1 GB"
    return Finding(
        "free disk", f"{free:.1f} GB here", remedy if free < LITTLE_DISK_GB else ""
    )


def show(findings: list[Finding]) -> None:
    """Print the findings as a table."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None)
    for title in ("", "what", "state", "to get it"):
        table.add_column(title)
    for found in findings:
        mark = "[green]✓[/]" if not found.remedy else "[yellow]•[/]"
        if found.remedy and found.required:
            mark = "[red]✗[/]"
        said = (found.subject, found.state, found.remedy)
        table.add_row(mark, *map(escape, said))
    Console().print(table)


@dataclasses.dataclass(frozen=True)
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
        figures = suite.run(suite.QUICK if self.quick else suite.FULL, _say)
        if self.json:
            print(json.dumps(figures))
        else:
            _show_figures(figures)
        return 0


def _say(what: str) -> None:
    """Tell on stderr what is going on; stdout belongs to the figures."""
    print(f"measuring: {what}", file=sys.stderr, flush=True)


def _show_figures(figures: dict[str, Any]) -> None:
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
    pathwise = figures["dhmbpo"]
    faster = pathwise["vs_pytorch"]
    for name, unit in (("update", "updates"), ("distribution", "rollouts")):
        table.add_row(
            f"dhmbpo, {name}",
            f"{pathwise[name]['per_s']:,.3g} {unit}/s",
            f"{pathwise[name]['share_of_limit']:.2f}",
            f"{faster:.2f}x" if name == "update" and faster is not None else "",
        )
    table.add_row(
        "dhmbpo, fit",
        f"{pathwise['fit']['per_s']:,.0f} transitions/s",
        f"{pathwise['fit']['share_of_limit']:.2f}",
    )
    overhead = pathwise["uncertainty_overhead"]
    table.add_row("sqrt(U) adds to its update", f"{overhead:.0%}")
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
