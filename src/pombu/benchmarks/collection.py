"""How much faster real episodes are collected in batches than one by one."""

import time

import numpy as np

from pombu.envs import Task, collect, load

TASKS = ("Point2D", "Swimmer", "HalfCheetah", "Ant", "Walker2d")
EPISODES = 20


def steps_per_second(task: Task, batched: bool, repeats: int) -> float:
    """Real steps per second under a policy that costs nothing (the best of a few)."""
    rng = np.random.default_rng(0)
    actions = rng.uniform(-1, 1, (task.horizon, EPISODES, task.action_dim))
    seconds = []
    for repeat in range(repeats):
        seeds = range(repeat * EPISODES, (repeat + 1) * EPISODES)
        start = time.perf_counter()
        collect(task, lambda obs, step: actions[step], seeds, batched)
        seconds.append(time.perf_counter() - start)
    return EPISODES * task.horizon / min(seconds)


def measure(repeats: int) -> dict[str, dict[str, float]]:
    """Steps per second of each task, one by one and in batches, and their ratio."""
    results = {}
    for name in TASKS:
        task = load(name)
        single = steps_per_second(task, batched=False, repeats=repeats)
        batched = steps_per_second(task, batched=True, repeats=repeats)
        results[name] = {
            "single_steps_per_s": single,
            "batched_steps_per_s": batched,
            "ratio": batched / single,
        }
    return results
