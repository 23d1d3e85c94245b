"""The random policy's return on every task: the floor that learning must rise above."""

import gymnasium
import numpy as np
from rich.console import Console
from rich.table import Table

import pombu  # noqa: F401  (registers the tasks)

EPISODES = 10


def random_returns(task: str) -> list[float]:
    """Returns of uniformly random episodes of one task."""
    env = gymnasium.make(task)
    env.action_space.seed(0)
    returns = []
    for episode in range(EPISODES):
        env.reset(seed=episode)
        total, truncated = 0.0, False
        while not truncated:
            _, reward, _, truncated, _ = env.step(env.action_space.sample())
            total += float(reward)
        returns.append(total)
    env.close()
    return returns


def main() -> None:
    """Print one row per task."""
    table = Table("task", title=f"Uniform random policy, {EPISODES} episodes")
    table.add_column("mean return", justify="right")
    table.add_column("standard deviation", justify="right")
    for task in sorted(
        name for name in gymnasium.registry if name.startswith("pombu/")
    ):
        returns = random_returns(task)
        table.add_row(task, f"{np.mean(returns):.1f}", f"{np.std(returns):.1f}")
    Console().print(table)


if __name__ == "__main__":
    main()
