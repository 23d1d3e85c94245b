"""Learning curves of the paper: Figures 2 to 5, Appendices D and E, and two of our own.

Each is panels of runs at the paper's scale, a way to draw them, and its entry in the
list of reproductions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, get_args

import numpy as np
from matplotlib.figure import Figure

from pombu.analysis.plots import BLACK, BLUE, VERMILLION, grid, thousands
from pombu.envs import EnvConfig
from pombu.envs.config import NoiseKind
from pombu.paper import Profile
from pombu.paper.drawing import (
    STAND_IN_NOTE,
    add_legend,
    count_seeds,
    draw_band,
    draw_panel,
    draw_returns,
)
from pombu.paper.experiments import (
    MEPPO,
    METRPO,
    PETS,
    POMBU,
    PPO,
    PPO_MAX,
    PUBLISHED_1,
    PUBLISHED_1_MAX,
    PUBLISHED_2,
    SAC,
    SAC_MAX,
    SLBO,
    STEVE,
    Arm,
    Item,
    Panel,
    Reproduction,
    alive_bonus,
    alpha_arms,
    at,
    published_by_label,
)
from pombu.paper.panel_runs import Group, Results

TASK_STEPS = {
    "HalfCheetah": 200_000,
    "Swimmer": 100_000,
    "Ant": 600_000,
    "Walker2d": 400_000,
}
"""Real steps of Figure 2: iterations x trajectories x 200 of the paper's Table 5."""
FAST_STEPS = {"Swimmer": 50_000}
ALL_METHODS = (POMBU, MEPPO, METRPO, SLBO, SAC, PPO, SAC_MAX, PPO_MAX)
ABLATION_STEPS = 50_000
"""Real steps of `fast` where POMBU is compared with itself."""
ALPHAS = (0.0, 0.25, 0.5, 0.75, 1.0)
"""The paper's, in units of scaled reward."""
FAST_ALPHAS = (0.0, 0.025, 0.05, 0.1, 0.2)
"""The same question in the unit of `fast`, whose own value is in the middle."""
REWARD_UNITS = (("returns.uncertainty_units", "reward"), ("returns.variance_clip", 5.0))
"""With these, alpha means in `fast` what it means in the paper."""
NOISES: dict[NoiseKind, str] = {
    "gaussian": "normal (text)",
    "uniform": "uniform (code)",
}
"""The paper's text adds normal noise, its published code uniform noise."""
MOMENT = 100_000
"""Real steps after which Figure 4 compares seeds."""
EXPLORATION_SEEDS = 5
EXPLORATION_ARMS = (
    replace(POMBU, label="β = 10"),
    Arm("β = 0", "pombu", VERMILLION, "--", (("beta", 0.0),)),
)
FAST_EXPLORATION_ARMS = tuple(
    Arm(
        f"β = {beta:g}",
        "pombu",
        colour,
        line,
        (("beta", beta), ("exploration.policies", 10)),
    )
    for beta, colour, line in ((1.0, BLUE, "-"), (0.0, VERMILLION, "--"))
)
"""`fast` has no exploration policies of its own, and another unit of the bonus."""
TRAINING_METRICS = (
    "entropy",
    "kl",
    "penalty",
    "p_improve_ratio",
    "return_model",
    "return_real",
)
TRAINING_TITLES = {
    "p_improve_ratio": "p_improve: L_clip / L_std",
    "return_model": "return_model (imagined)",
    "return_real": "return_real",
}
"""The published code plots the ratio under the name p_improve."""
PETS_U = Arm("PETS-U", "pets", VERMILLION, "-", (("kappa", 1.0),))
STEVE_U = Arm("STEVE-U", "steve", VERMILLION, "-", (("weighting", "bellman"),))


def task_panels(profile: Profile) -> list[Panel]:
    """Figure 2: one panel per task, with the alive bonus of the published code.

    The paper prints numbers for HalfCheetah alone.
    """
    numbers = {
        "HalfCheetah": published_by_label(ALL_METHODS, PUBLISHED_1, PUBLISHED_1_MAX)
    }
    return [
        at(
            profile,
            Panel(
                task,
                EnvConfig(task, alive_bonus=alive_bonus(task)),
                ALL_METHODS,
                steps,
                published=numbers.get(task, {}),
            ),
            FAST_STEPS.get(task, 100_000),
        )
        for task, steps in TASK_STEPS.items()
    ]


def _alpha_panels(profile: Profile) -> list[Panel]:
    """Figure 3 and Appendix D: an arm per alpha.

    `fast` asks twice: in the paper's unit, and in its own, where the standard deviation
    of the advantages is 1.
    """
    env = EnvConfig("HalfCheetah")
    if profile != "fast":
        panel = Panel("HalfCheetah, H = 200", env, alpha_arms(ALPHAS), 200_000)
        return [at(profile, panel)]
    panels = (
        Panel("α in units of reward", env, alpha_arms(ALPHAS, REWARD_UNITS), 200_000),
        Panel("α in units of advantage", env, alpha_arms(FAST_ALPHAS), 200_000),
    )
    return [at(profile, panel, ABLATION_STEPS) for panel in panels]


def _exploration_panels(profile: Profile) -> list[Panel]:
    """Figure 4: one panel; its picture has a second one beside it."""
    panel = Panel(
        "HalfCheetah, H = 200",
        EnvConfig("HalfCheetah"),
        FAST_EXPLORATION_ARMS if profile == "fast" else EXPLORATION_ARMS,
        200_000,
        seeds=tuple(range(EXPLORATION_SEEDS)),
        paper_seeds=EXPLORATION_SEEDS,
    )
    return [at(profile, panel, ABLATION_STEPS)]


def _robustness_panels(profile: Profile) -> list[Panel]:
    """Figure 5: noise in both readings, and a long horizon."""
    arms = (POMBU, METRPO)
    noisy = [
        Panel(f"HalfCheetah, {words}", env, arms, 200_000) for env, words in _noisy(0.1)
    ]
    horizon = EnvConfig("HalfCheetah", horizon=1000)
    long = Panel("HalfCheetah, H = 1000", horizon, arms, 200_000)
    return [at(profile, panel) for panel in (*noisy, long)]


def _noise_panels(profile: Profile) -> list[Panel]:
    """Appendix E: noisy HalfCheetah, the paper's three panels in both readings."""
    compared = ((0.01, MEPPO), (0.1, MEPPO), (0.01, METRPO))
    return [
        at(profile, Panel(f"{words}, {other.label}", env, (POMBU, other), 200_000))
        for reading in NOISES
        for noise, other in compared
        for env, words in _noisy(noise, (reading,))
    ]


def _noisy(
    noise: float, readings: Sequence[NoiseKind] = get_args(NoiseKind)
) -> list[tuple[EnvConfig, str]]:
    """HalfCheetah with noise in each reading of it, and what it is called."""
    return [
        (
            EnvConfig("HalfCheetah", observation_noise=noise, noise_kind=reading),
            f"σ = {noise:g}, {NOISES[reading]}",
        )
        for reading in readings
    ]


def long_panels(profile: Profile) -> list[Panel]:
    """Appendix E: one panel per task with H = 1000."""
    arms = (POMBU, MEPPO)
    return [
        at(
            profile,
            Panel(
                f"{task}, H = 1000",
                EnvConfig(task, horizon=1000, alive_bonus=alive_bonus(task)),
                arms,
                200_000,
                published=published_by_label(arms, PUBLISHED_2[task]),
            ),
        )
        for task in ("HalfCheetah", "Ant", "Swimmer", "Walker2d")
    ]


def _uncertainty_panels(profile: Profile) -> list[Panel]:
    """PETS-U and STEVE-U: one panel for each method.

    At the paper's scale they have the recommended presets, too.
    """
    env = EnvConfig("HalfCheetah")
    planned = Panel("PETS", env, (PETS, PETS_U), total_steps=20_000, preset="fast")
    expanded = Panel("STEVE", env, (STEVE, STEVE_U), total_steps=50_000, preset="fast")
    return [at(profile, planned, 10_000, (0,)), at(profile, expanded, 20_000, (0,))]


def _preset_panels(profile: Profile) -> list[Panel]:
    """POMBU with the values of Appendix D beside the recommended ones."""
    arms = (
        replace(POMBU, label="POMBU, fast", preset="fast"),
        Arm("POMBU, paper", "pombu", VERMILLION, (0, (5, 1)), preset="paper"),
    )
    theirs = {"POMBU, paper": PUBLISHED_1["pombu"]}
    env = EnvConfig("HalfCheetah")
    panel = Panel("HalfCheetah, H = 200", env, arms, 200_000, published=theirs)
    return [at(profile, panel, seeds=(0,))]


def _draw_curves(results: Results) -> Mapping[str, Figure]:
    """Return by real steps, one axis per panel."""
    return {"": draw_returns(results)}


def _draw_exploration(results: Results) -> Mapping[str, Figure]:
    """Left the curves, right every seed as a dot and their mean as a bar."""
    (panel,) = results.panels
    figure, axes = grid(1, 2, width=3.6, height=3.0)
    left, right = axes[0]
    groups = results.of(panel)
    draw_panel(left, panel, groups, seeds=False, published=False)
    left.set_ylabel("return")
    step = _moment(groups)
    for i, group in enumerate(groups):
        values = _returns_at(group, step)
        shift = np.linspace(-0.12, 0.12, len(values)) if len(values) > 1 else [0.0]
        right.plot(i + np.array(shift), values, "o", color=group.arm.colour, ms=6)
        right.hlines(values.mean(), i - 0.25, i + 0.25, color=BLACK, linewidth=1.5)
    right.set_xticks(range(len(groups)), [group.arm.label for group in groups])
    right.set_xlim(-0.6, len(groups) - 0.4)
    right.set_title(f"seeds after {thousands(step, 0)} real steps")
    right.set_ylabel("return")
    add_legend(figure, groups, published=False)
    return {"": figure}


def _exploration_numbers(results: Results) -> Mapping[str, Any]:
    """The seeds of Figure 4 at the moment when they are compared."""
    groups = results.of(results.panels[0])
    step = _moment(groups)
    return {
        "after_1e5_steps": {
            group.arm.label: {
                "real_steps": step,
                "returns": _returns_at(group, step).tolist(),
                "std": float(_returns_at(group, step).std()),
            }
            for group in groups
        }
    }


def _moment(groups: Sequence[Group]) -> int:
    """When seeds are compared: after the paper's 1e5 steps, or where the first ends."""
    return min(MOMENT, *(group.steps for group in groups))


def _returns_at(group: Group, step: int) -> np.ndarray:
    """Every seed's return at a step, between the evaluations around it."""
    return np.array(
        [
            np.interp(step, c.column("real_steps"), c.column("return_real"))
            for c in group.curves
        ]
    )


def draw_training(results: Results) -> Mapping[str, Figure]:
    """The paper's six quantities by iteration; a picture for each unit of alpha."""
    drawn = [panel for panel in results.panels if results.of(panel)]
    return {
        f"-{i + 1}" if i else "": _draw_training(results, panel)
        for i, panel in enumerate(drawn)
    }


def _draw_training(results: Results, panel: Panel) -> Figure:
    figure, axes = grid(2, 3, width=3.0, height=2.5)
    for metric, axis in zip(TRAINING_METRICS, axes.flat, strict=True):
        for group in results.of(panel):
            draw_band(axis, group, metric, "iteration")
        axis.set_title(TRAINING_TITLES.get(metric, metric))
        axis.set_xlabel("iteration")
    low = min(axis.get_ylim()[0] for axis in axes[1, 1:])
    high = max(axis.get_ylim()[1] for axis in axes[1, 1:])
    for axis in axes[1, 1:]:
        # The two returns are there to be compared.
        axis.set_ylim(low, high)
    note = f"{STAND_IN_NOTE}, " if panel.preset == "smoke" else ""
    seeds = count_seeds(results.of(panel))
    task = "" if panel.title.startswith(panel.task) else f"{panel.task}, "
    figure.suptitle(f"{task}{panel.title} ({note}{seeds})", fontsize=10)
    add_legend(figure, results.of(panel), published=False)
    return figure


FIGURE_2 = Reproduction(
    "figure-2",
    "Figure 2: learning curves on four tasks, H = 200 (fast: about a day)",
    "fast",
    Item(task_panels, _draw_curves),
)
FIGURE_3 = Reproduction(
    "figure-3",
    "Figure 3: the penalty alpha, 0 to 1 (fast: in two units, three seeds; hours)",
    "fast",
    Item(_alpha_panels, _draw_curves),
)
FIGURE_4 = Reproduction(
    "figure-4",
    "Figure 4: exploration with beta = 10 against 0 (fast: three seeds; hours)",
    "fast",
    Item(_exploration_panels, _draw_exploration, numbers=_exploration_numbers),
)
FIGURE_5 = Reproduction(
    "figure-5",
    "Figure 5: noise 0.1 and H = 1000 against ME-TRPO (fast: hours)",
    "fast",
    Item(
        _robustness_panels,
        lambda results: {"": draw_returns(results, columns=3, seeds=True)},
    ),
)
APPENDIX_TRAINING = Reproduction(
    "appendix-training",
    "Appendix D: entropy, KL, penalty and returns for each alpha (figure-3's runs)",
    "fast",
    Item(
        _alpha_panels, draw_training, metrics=(*TRAINING_METRICS, "p_improve", "alpha")
    ),
)
APPENDIX_NOISE = Reproduction(
    "appendix-noise",
    "Appendix E: noise 0.01 and 0.1, against MEPPO and ME-TRPO (fast: hours)",
    "fast",
    Item(_noise_panels, lambda results: {"": draw_returns(results, columns=3)}),
)
APPENDIX_LONG = Reproduction(
    "appendix-long",
    "Appendix E: four tasks with H = 1000, against MEPPO (fast: a day)",
    "fast",
    Item(long_panels, _draw_curves),
)
PAPER_BESIDE_FAST = Reproduction(
    "paper-beside-fast",
    "POMBU with Appendix D's settings beside `fast` (fast: one seed; hours)",
    "fast",
    Item(_preset_panels, _draw_curves),
)
UNCERTAINTY_INSIDE_CHEETAH = Reproduction(
    "uncertainty-inside-cheetah",
    "PETS-U and STEVE-U on HalfCheetah (fast: one seed; an hour)",
    "fast",
    Item(_uncertainty_panels, _draw_curves),
)
