"""Returns to reach outside the paper's tasks, and what others report there."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Goal:
    """A return to reach, and within how many real steps."""

    target: float
    steps: int
    published: str = ""
    """What others report of SAC."""


GOALS = {
    "Pendulum-v1": Goal(
        -250,
        20_000,
        "SAC by Stable-Baselines3 has -157 ± 89 after 20,000 real steps (one run, RL "
        "Baselines3 Zoo's benchmark.md).",
    ),
    "InvertedPendulum-v5": Goal(900, 20_000),
    "Reacher-v5": Goal(-6, 50_000),
}
