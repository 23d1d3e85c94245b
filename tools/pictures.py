"""The pictures of docs/ideas.md: pombu's own functions in a one-dimensional task.

    python -m tools.pictures

An SVG follows the colour scheme of the page that shows it.
"""

import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure

from pombu.analysis.plots import BLUE, GREEN, ORANGE, SKY, VERMILLION, style
from pombu.optim.objectives import conservative_surrogate
from pombu.uncertainty import estimate
from pombu.uncertainty.tabular import (
    chain,
    pombu_bound,
    posterior_variance,
    ube_bound,
)

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "pictures"
INK, DARK_INK = "#333344", "#d7d9e0"
H, GAMMA = 25, 0.97
GAP = (-0.1, 0.4)
MEMBER_COLOURS = (BLUE, SKY, GREEN, ORANGE, VERMILLION)


@dataclass
class Dynamics:
    """Five regressions of a one-dimensional task, and what they make of a policy."""

    members: Sequence[Callable[[Any, Any], Any]]
    states: np.ndarray
    """Where the data is."""

    def roll(self, states: np.ndarray, first: float | None = None) -> Any:
        """States and actions in the mean model, under the policy after `first`."""
        path, actions = [states], []
        for step in range(H):
            chosen = policy(path[-1])
            if step == 0 and first is not None:
                chosen = np.full_like(chosen, first)
            actions.append(chosen)
            path.append(np.mean([m(path[-1], chosen) for m in self.members], axis=0))
        return np.stack(path), np.stack(actions)

    def q(self, states: np.ndarray, first: float | None = None) -> np.ndarray:
        """Discounted return of a first action, and the policy's from then on."""
        path, actions = self.roll(states, first)
        rewards = reward(path[:-1], actions, path[1:])
        return np.sum(GAMMA ** np.arange(H)[:, None] * rewards, axis=0)

    @cached_property
    def value(self) -> Callable[[Any], Any]:
        """V of the policy, from a table."""
        grid = np.linspace(-2, 2, 401)
        table = self.q(grid[:, None])
        return lambda states: np.interp(states[..., 0], grid, table)

    def sigma(
        self, states: np.ndarray, first: float | None = None, steps: int = H
    ) -> np.ndarray:
        """Algorithm 1 along the mean model's trajectory; one step is the local part."""
        path, actions = self.roll(states, first)
        found = estimate(
            self.members,
            self.value,
            path[:steps],
            actions[:steps],
            GAMMA,
            reward=reward,
        )
        return np.asarray(found[0])


def policy(states: Any) -> Any:
    """Walk to the right, and stop at 0.9."""
    return np.clip(3 * (0.9 - states), -1, 0.8)


def reward(states: Any, actions: Any, next_states: Any) -> Any:
    """Best at 1, with a small price on actions."""
    return -((next_states[..., 0] - 1) ** 2) - 0.02 * actions[..., 0] ** 2


def features(states: Any, actions: Any) -> Any:
    """Bumps along the state, and the action with each of them."""
    centres = np.linspace(-1.3, 1.3, 12)
    bumps = np.exp(-0.5 * ((states - centres) / 0.22) ** 2)
    return np.concatenate([bumps, bumps * actions, actions], axis=-1)


def fit(more: int = 0) -> Dynamics:
    """Bootstrapped ridge regressions of data with a gap; `more` steps fill the gap."""
    rng = np.random.default_rng(5)
    low, high = GAP
    states = np.concatenate(
        [
            rng.uniform(-1.2, low, 200),
            rng.uniform(high, 1.2, 150),
            rng.uniform(low, high, more),
        ]
    )[:, None]
    actions = rng.uniform(-1, 1, states.shape)
    change = 0.09 * actions + 0.03 * np.sin(4 * states)
    change = change + 0.0015 * rng.normal(size=states.shape)
    x = features(states, actions)
    members = []
    for _ in MEMBER_COLOURS:
        rows = rng.integers(len(x), size=len(x))
        guess = 0.1 * rng.normal(size=x.shape[1])
        precision = x[rows].T @ x[rows] + 0.004 * np.eye(x.shape[1])
        target = x[rows].T @ change[rows, 0] + 0.004 * guess
        members.append(_member(np.linalg.solve(precision, target)))
    return Dynamics(members, states)


def _member(weights: np.ndarray) -> Callable[[Any, Any], Any]:
    return lambda s, a: np.clip(s + (features(s, a) @ weights)[..., None], -2, 2)


def what_u_is() -> Figure:
    """Data, disagreement, and what flows back from it."""
    dynamics = fit()
    line = np.linspace(-1.1, 1.1, 200)[:, None]
    figure = Figure(figsize=(7, 5.6))
    top, middle, bottom = figure.subplots(3, 1, sharex=True, height_ratios=(3, 2, 2))
    for member, colour in zip(dynamics.members, MEMBER_COLOURS, strict=True):
        moved = member(line, policy(line)) - line
        top.plot(line[:, 0], moved[:, 0], color=colour, linewidth=1.2)
    top.plot(
        dynamics.states[:, 0], np.full(len(dynamics.states), -0.02), "|", color=INK
    )
    top.set_ylabel("predicted move")
    top.set_title("Five members agree where there is data (marks) and guess elsewhere")
    local, total = dynamics.sigma(line, steps=1), dynamics.sigma(line)
    for axes, height, colour, label, title in (
        (middle, local, ORANGE, "√u", "One step: the spread of r + γV(s′) here"),
        (bottom, total, BLUE, "√U", "All steps: the uncertainty of Q"),
    ):
        axes.fill_between(line[:, 0], height, color=colour, alpha=0.35)
        axes.plot(line[:, 0], height, color=colour)
        axes.set(ylabel=label, title=title, ylim=(0, 1.15 * max(height)))
    bottom.annotate(
        "the way leads\nthrough the gap",
        (-0.55, float(np.interp(-0.55, line[:, 0], total))),
        (-1.02, 0.32 * float(total.max())),
        color=INK,
        arrowprops={"arrowstyle": "->", "color": INK},
    )
    bottom.set_xlabel("state s  (the policy walks to the right)")
    return figure


def three_bounds() -> Figure:
    """The truth, U and UBE's bound on the paper's chain."""
    horizons = range(2, 13)
    figure = Figure(figsize=(7, 3))
    axes = figure.subplots()
    for name, bound, colour, mark in (
        ("B, UBE (2018)", ube_bound, VERMILLION, "s"),
        ("U, the paper's bound", pombu_bound, BLUE, "o"),
        ("D, the truth", posterior_variance, INK, "."),
    ):
        heights = [bound(*chain(h), h)[0, h, 1] for h in horizons]
        axes.semilogy(horizons, heights, marker=mark, color=colour, label=name)
    axes.set(xlabel="steps H of the chain (Appendix C)", ylabel="variance of Q")
    axes.legend()
    return figure


def why_conservative() -> Figure:
    """The objective of one sample, and when a change is worth it."""
    alpha, clip = 0.5, 0.15
    ratios = np.linspace(0.7, 1.3, 241)
    figure = Figure(figsize=(7, 3.2))
    left, right = figure.subplots(1, 2)
    for sigma, colour in ((0.0, GREEN), (1.0, BLUE), (3.0, VERMILLION)):
        heights = gain(ratios, 1.0, sigma, alpha, clip)
        left.plot(ratios, heights, color=colour, label=f"√D = {sigma:g}")
        best = int(np.argmax(heights))
        left.plot(ratios[best], heights[best], "o", color=colour)
    left.set(
        xlabel="ratio r of new to old probability",
        ylabel="L_π of one sample",
        title="Advantage 1, α = 0.5",
        ylim=(-0.5, 0.2),
    )
    left.legend(loc="lower center")
    advantages, sigmas = np.meshgrid(np.linspace(-2, 2, 161), np.linspace(0, 4, 161))
    # The objective is piecewise linear, so the best ratio is one of its kinks; the
    # first of equals counts, and that is to stay.
    kinks = (1.0, 1 - clip, 1 + clip)
    heights = [gain(kink, advantages, sigmas, alpha, clip) for kink in kinks]
    best_ratio = np.take(kinks, np.argmax(heights, axis=0))
    image = right.contourf(
        advantages,
        sigmas,
        best_ratio,
        levels=[0.8, 0.999, 1.001, 1.2],
        colors=[VERMILLION, "#9a9aa8", GREEN],
        alpha=0.5,
    )
    image.set_edgecolor("face")
    right.set(xlabel="advantage A", ylabel="uncertainty √D", title="What is best")
    right.text(0, 3.1, "stay: |A| < α√D", ha="center", color=INK)
    right.text(-1.45, 0.5, "less often", ha="center", color=INK)
    right.text(1.45, 0.5, "more often", ha="center", color=INK)
    return figure


def gain(ratio: Any, advantage: Any, sigma: Any, alpha: float, clip: float) -> Any:
    """The objective of batches of one sample each."""

    def one(*sample: Any) -> Any:
        return conservative_surrogate(*(x[None] for x in sample), clip, alpha)

    arrays = jnp.broadcast_arrays(*map(jnp.asarray, (ratio, advantage, sigma, 1.0)))
    flat = jax.vmap(one)(*(array.ravel() for array in arrays))
    return np.round(flat.reshape(arrays[0].shape), 6)


def how_exploration_uses_it() -> Figure:
    """Where the exploration policy goes, and what its data does to U."""
    before, after = fit(), fit(more=25)
    figure = Figure(figsize=(7, 3.2))
    left, right = figure.subplots(1, 2)
    states, actions = np.linspace(-1.1, 1.1, 60), np.linspace(-1, 1, 21)
    paid = [before.sigma(states[:, None], action) for action in actions]
    image = left.contourf(states, actions, paid, levels=12, cmap="viridis")
    image.set_edgecolor("face")
    left.set(
        xlabel="state s",
        ylabel="action (left, right)",
        title="√D: what an explorer is paid for",
    )
    line = np.linspace(-1.1, 1.1, 200)[:, None]
    for dynamics, colour, name in (
        (before, ORANGE, "before"),
        (after, GREEN, "with 25 steps in the gap"),
    ):
        right.plot(line[:, 0], dynamics.sigma(line), color=colour, label=name)
    right.axvspan(*GAP, color=ORANGE, alpha=0.12, linewidth=0)
    right.set(xlabel="state s", ylabel="√U", title="What its data does")
    right.set_ylim(0, 1.4 * float(before.sigma(line).max()))
    right.legend(loc="upper right")
    return figure


def write(name: str, draw: Callable[[], Figure]) -> Path:
    """Draw one picture into docs/pictures."""
    ink = dict.fromkeys(
        (
            "text.color",
            "axes.edgecolor",
            "axes.labelcolor",
            "xtick.color",
            "ytick.color",
            "grid.color",
        ),
        INK,
    )
    box = io.StringIO()
    with style(), rc_context({**ink, "svg.hashsalt": "pombu"}):
        draw().savefig(box, format="svg", transparent=True, metadata={"Date": None})
    path = FOLDER / f"{name}.svg"
    path.write_text(themed(box.getvalue()))
    return path


def themed(svg: str) -> str:
    """Let the ink follow the colour scheme."""
    rules = (
        f"svg {{ color: {INK} }} "
        f"@media (prefers-color-scheme: dark) {{ svg {{ color: {DARK_INK} }} }}"
    )
    svg = svg.replace(INK, "currentColor")
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"[ \t]+$", "", svg, flags=re.MULTILINE)
    return svg.replace("<defs>", f'<defs>\n  <style type="text/css">{rules}</style>', 1)


PICTURES: dict[str, Callable[[], Figure]] = {
    "what-u-is": what_u_is,
    "three-bounds": three_bounds,
    "why-conservative": why_conservative,
    "how-exploration-uses-it": how_exploration_uses_it,
}

if __name__ == "__main__":
    for name, draw in PICTURES.items():
        print(write(name, draw))
