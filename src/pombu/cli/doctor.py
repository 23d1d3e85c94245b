"""`pombu doctor`: what this machine offers, what is missing and how to get it."""

import dataclasses
import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

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
    "baselines": ("stable-baselines3",),
    "tensorboard": ("tensorboardX",),
    "wandb": ("wandb",),
    "ray": ("ray",),
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


def version(package: str) -> str | None:
    """A package's installed version."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def package(name: str) -> Finding:
    """A package without which pombu does not run."""
    found = version(name)
    remedy = "" if found else f"pip install {name}"
    return Finding(name, found or "missing", remedy, required=True)


def extra(name: str, packages: tuple[str, ...]) -> Finding:
    """An optional group of packages."""
    missing = [package for package in packages if version(package) is None]
    if missing:
        return Finding(
            f"extra: {name}",
            f"missing {', '.join(missing)}",
            f"pip install 'pombu[{name}]'",
        )
    versions = ", ".join(f"{package} {version(package)}" for package in packages)
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
