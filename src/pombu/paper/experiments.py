"""The paper's experiments as declarations: panels of arms, at three scales.

An arm is a method as one line of a picture, a panel is where arms are compared, and an
item of the paper is a few panels and how they are drawn. Panels are written down at the
paper's scale; `at` gives them the scale of a profile.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from matplotlib.figure import Figure

from pombu.algorithms.config import horizon_of
from pombu.analysis.curves import Curve
from pombu.analysis.plots import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    SKY,
    VERMILLION,
)
from pombu.analysis.results_page import Published
from pombu.envs import EnvConfig
from pombu.paper import Profile
from pombu.studies.study import Job
from pombu.training.config_file import from_json

if TYPE_CHECKING:
    from pombu.paper.panel_runs import Request, Results

STAND_IN = "Point2D"
"""The task of every smoke run."""
SMOKE_STEPS = 180
SMOKE_HORIZON = 45
"""Stands for H = 1000."""
EXTENDED_STEPS = 1_000_000
"""Real steps of the model-free methods' "max" lines."""


@dataclass(frozen=True)
class Arm:
    """A method as one line of a picture."""

    label: str
    algorithm: str
    colour: str = BLUE
    line: Any = "-"
    overrides: tuple[tuple[str, Any], ...] = ()
    extended: bool = False
    """Trained much longer, for the best it ever reaches: a "max" line."""
    preset: Profile | None = None
    """None is the panel's; an arm with one of its own keeps it but in `smoke`."""

    @property
    def look(self) -> dict[str, Any]:
        """Colour and line."""
        return {"color": self.colour, "linestyle": self.line}


@dataclass(frozen=True)
class Panel:
    """Arms on one task."""

    title: str
    env: EnvConfig
    arms: tuple[Arm, ...]
    total_steps: int
    seeds: tuple[int, ...] = (0, 1, 2)
    preset: Profile = "paper"
    published: Mapping[str, Published] = field(default_factory=dict)
    """The paper's own numbers, by the arm's label."""
    paper_seeds: int = 3
    """How many the paper has; fewer are marked."""

    @property
    def task(self) -> str:
        """The environment's id as it was given."""
        return self.env.id

    def jobs(self, arm: Arm) -> list[Job]:
        """The runs of an arm."""
        return [self._job(arm, seed) for seed in self.seeds]

    def steps(self, arm: Arm) -> int:
        """Real steps of an arm's runs."""
        if not arm.extended:
            return self.total_steps
        return 2 * self.total_steps if self.preset == "smoke" else EXTENDED_STEPS

    def _job(self, arm: Arm, seed: int) -> Job:
        steps = self.steps(arm)
        job = Job(
            algorithm=arm.algorithm,
            env=self.env,
            seed=seed,
            preset=arm.preset or self.preset,
            total_steps=steps,
            overrides=arm.overrides,
        )
        return replace(job, overrides=(*arm.overrides, *_decay(job, steps)))


def _decay(job: Job, steps: int) -> tuple[tuple[str, int], ...]:
    """The override with which PPO's learning rate falls over all steps, if it falls.

    Runs of different length are then different experiments, by name and by config.
    """
    if job.algorithm != "ppo":
        return ()
    config = job.config()
    if config.learning_rate == config.final_learning_rate:
        return ()
    horizon = horizon_of(job.task, job.env.horizon)
    return (("iterations", config.iterations_for(steps, horizon)),)


@dataclass(frozen=True)
class Item:
    """A figure or table of the paper."""

    panels: Callable[[Profile], Sequence[Panel]]
    draw: Callable[["Results"], Mapping[str, Figure]]
    """Pictures by the suffix of their file's name; the item's own has none."""
    metrics: tuple[str, ...] = ("return_real", "return_deterministic")
    """Columns of the runs that go into the item's data."""
    numbers: Callable[["Results"], Mapping[str, Any]] = lambda results: {}
    """What the summary says beside returns."""


@dataclass(frozen=True)
class Reproduction:
    """What `pombu reproduce NAME` does.

    It has either an item, or `reproduce`, or `reproduce_from`. What is not drawn from
    runs writes pictures (PNG and PDF), data (CSV or JSON), config.json and
    versions.json into its folder, and gives the headline numbers back.
    """

    name: str
    summary: str
    """One line for the list of reproductions."""
    default: Profile
    """The profile that is used unless another is asked for."""
    item: Item | None = None
    """Panels of runs to compare, and how to draw them."""
    reproduce: Callable[[Profile, Path], dict[str, Any]] | None = None
    """Does the whole work in a folder."""
    tell: Callable[[dict[str, Any]], str] | None = None
    """The numbers of `reproduce` in one line of the overview; pages have none."""
    reproduce_from: Callable[["Request"], dict[str, Any]] | None = None
    """Does the whole work from runs that exist."""
    redraw: Callable[[Profile, Path, Path], dict[str, Any]] | None = None
    """What `reproduce` does, out of the first folder, in which it was done before, into
    the second one, without the long computation."""


def at(
    profile: Profile,
    panel: Panel,
    steps: int = 100_000,
    seeds: Sequence[int] = (0, 1, 2),
) -> Panel:
    """A panel at a profile's scale; `steps` and `seeds` are those of `fast`."""
    if profile == "paper":
        return panel
    if profile == "fast":
        kept = tuple(arm for arm in panel.arms if not arm.extended)
        return replace(
            panel, arms=kept, total_steps=steps, seeds=tuple(seeds), preset="fast"
        )
    long = panel.env.horizon is not None
    horizon = SMOKE_HORIZON if long else None
    return replace(
        panel,
        env=replace(panel.env, id=STAND_IN, horizon=horizon, alive_bonus=None),
        arms=tuple(replace(arm, preset=None) for arm in panel.arms),
        total_steps=2 * SMOKE_STEPS if long else SMOKE_STEPS,
        seeds=(0, 1),
        preset="smoke",
        published={},
    )


POMBU = Arm("POMBU", "pombu", BLUE)
MEPPO = Arm("MEPPO", "meppo", VERMILLION, (0, (5, 1)))
METRPO = Arm("METRPO", "metrpo", GREEN, (0, (3, 1, 1, 1)))
SLBO = Arm("SLBO", "slbo", ORANGE, (0, (1, 1)))
SAC = Arm("SAC", "sac", PURPLE, (0, (4, 1, 1, 1, 1, 1)))
PPO = Arm("PPO", "ppo", SKY, "--")
STEVE = Arm("STEVE", "steve", BLACK, "-.")
MBMPO = Arm("MBMPO", "mbmpo", GREY, "--")
PETS = Arm("PETS", "pets", "#7A4A00", ":")
SAC_MAX = replace(SAC, label="SAC_max", extended=True)
PPO_MAX = replace(PPO, label="PPO_max", extended=True)


def published_by_label(
    arms: Iterable[Arm],
    table: Mapping[str, Published],
    best: Mapping[str, Published] | None = None,
) -> dict[str, Published]:
    """The paper's numbers of some arms, by their labels; `best` for "max" lines."""
    found = {}
    for arm in arms:
        source = (best or {}) if arm.extended else table
        if arm.algorithm in source:
            found[arm.label] = source[arm.algorithm]
    return found


def alpha_arms(
    values: Sequence[float], overrides: tuple[tuple[str, Any], ...] = ()
) -> tuple[Arm, ...]:
    """POMBU with other penalties, in colours from dark to light.

    alpha is held, as in every preset: `minimum_kl` is None.
    """
    # Five steps of cividis, which every kind of colour vision orders.
    shades = ("#00224E", "#3E4C6E", "#7C7B78", "#B9AC70", "#E8CE3C")
    lines = ("-", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)), "--")
    return tuple(
        Arm(
            f"α = {value:g}",
            "pombu",
            shades[i],
            lines[i],
            (("alpha", value), *overrides),
        )
        for i, value in enumerate(values)
    )


PUBLISHED_1: dict[str, Published] = {
    "pombu": Published(852, 21, 12.05, 1.2e8),
    "meppo": Published(449, 226, 10.17, 8e7),
    "metrpo": Published(483, 136, 6.35, 5e7),
    "slbo": Published(704, 70, 3.91, 1e7),
    "sac": Published(615, 64, 0.87, 0.0),
    "ppo": Published(-38, 16, 0.04, 0.0),
}
"""HalfCheetah, H = 200, 2e5 real steps."""

PUBLISHED_1_MAX: dict[str, Published] = {
    "sac": Published(741, 88, 4.18, 0.0, 9.89e5),
    "ppo": Published(218, 63, 0.19, 0.0, 9.78e5),
}
"""The best of about 1e6 real steps."""

PUBLISHED_2: dict[str, dict[str, Published]] = {
    "Ant": {
        "pombu": Published(2010, 91),
        "steve": Published(552, 190),
        "mbmpo": Published(706, 147),
        "slbo": Published(728, 123),
        "metrpo": Published(282, 18),
        "pets": Published(1852, 141),
    },
    "HalfCheetah": {
        "pombu": Published(3672, 8),
        "steve": Published(7965, 1719),
        "mbmpo": Published(3639, 1186),
        "slbo": Published(1098, 166),
        "metrpo": Published(2284, 900),
        "pets": Published(2795, 880),
    },
    "Swimmer": {
        "pombu": Published(144.4, 22.6),
        "steve": Published(149, 81),
        "mbmpo": Published(85.0, 98.9),
        "slbo": Published(41.6, 18.4),
        "metrpo": Published(30.1, 9.7),
        "pets": Published(22.1, 25.2),
    },
    "Walker2d": {
        "pombu": Published(-565, 129),
        "steve": Published(-26, 328),
        "mbmpo": Published(-1546, 217),
        "slbo": Published(-1278, 428),
        "metrpo": Published(-1609, 658),
        "pets": Published(260, 537),
    },
}
"""H = 1000, 2e5 real steps, with an alive bonus of 1 for Ant and Walker2d."""

RANDOM: dict[str, float] = {
    "Ant": 473.8,
    "HalfCheetah": -288.3,
    "Swimmer": 1.2,
    "Walker2d": -2456.9,
}
"""Return of random actions at H = 1000, in the benchmark that Table 2 quotes."""

UNCERTAINTY_MINUTES = 1.4
"""Time that the paper's POMBU spends on the uncertainty, HalfCheetah, H = 200."""


def alive_bonus(task: str) -> float | None:
    """The bonus per step in the published code, which the paper's rewards leave out."""
    return 1.0 if task in ("Ant", "Walker2d") else None


def published_for(curve: Curve) -> Mapping[str, Published]:
    """The numbers that a run can be compared with, by algorithm; none for most tasks.

    Task, horizon and alive bonus must be the paper's, and no other option set, but that
    Ant may observe its y position or not.
    """
    task = curve.task
    env = from_json(EnvConfig, curve.run.spec.config["env"], "env")
    if set(env.changed) - {"horizon", "alive_bonus", "observe_y"}:
        return {}
    if task == "HalfCheetah" and env.horizon in (None, 200):
        return PUBLISHED_1
    if env.horizon == 1000 and env.alive_bonus == alive_bonus(task):
        return PUBLISHED_2.get(task, {})
    return {}
