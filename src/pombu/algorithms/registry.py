"""Which algorithms there are, by name and without importing them."""

import difflib
import importlib
from dataclasses import dataclass
from typing import Any

from pombu.envs import Task
from pombu.errors import UsageError
from pombu.training import config_file
from pombu.training.algorithm import Algorithm


@dataclass(frozen=True)
class Entry:
    """Where an algorithm is."""

    summary: str
    module: str
    learner: str
    config: str
    """`module:class` of its config."""


ALGORITHMS = {
    "pombu": Entry(
        "policy optimisation with model-based uncertainty",
        "pombu.algorithms.pombu",
        "Learner",
        "pombu.config:POMBUConfig",
    ),
    "meppo": Entry(
        "model-ensemble PPO: POMBU without its uncertainty",
        "pombu.algorithms.pombu",
        "Learner",
        "pombu.config:POMBUConfig",
    ),
    "metrpo": Entry(
        "model-ensemble trust-region policy optimisation",
        "pombu.algorithms.metrpo",
        "Learner",
        "pombu.config:METRPOConfig",
    ),
    "slbo": Entry(
        "stochastic lower bound optimisation: model and policy in turn",
        "pombu.algorithms.slbo",
        "Learner",
        "pombu.config:SLBOConfig",
    ),
    "mbmpo": Entry(
        "model-based meta-policy optimisation: learns to adapt to every member",
        "pombu.algorithms.mbmpo",
        "Learner",
        "pombu.config:MBMPOConfig",
    ),
    "pets": Entry(
        "probabilistic ensembles with trajectory sampling: plans, has no policy",
        "pombu.algorithms.pets",
        "Learner",
        "pombu.config:PETSConfig",
    ),
    "steve": Entry(
        "stochastic ensemble value expansion: actor-critic with targets from a model",
        "pombu.algorithms.steve",
        "Learner",
        "pombu.config:STEVEConfig",
    ),
    "sac": Entry(
        "soft actor-critic, model-free (Stable-Baselines3)",
        "pombu.algorithms.sac",
        "Learner",
        "pombu.config:SACConfig",
    ),
    "ppo": Entry(
        "proximal policy optimisation, model-free (Stable-Baselines3)",
        "pombu.algorithms.ppo",
        "Learner",
        "pombu.config:PPOConfig",
    ),
}


def find(name: str) -> Entry:
    """The algorithm with this name.

    Raises:
        UsageError: There is none.
    """
    if name not in ALGORITHMS:
        near = difflib.get_close_matches(name.lower(), ALGORITHMS, n=1)
        hint = f"did you mean {near[0]}?" if near else "choose one of them."
        known = ", ".join(ALGORITHMS)
        raise UsageError(f"There is no algorithm {name!r}; there are {known}: {hint}")
    return ALGORITHMS[name]


def config_type(name: str) -> type[Any]:
    """The dataclass of an algorithm's config."""
    module, _, kind = find(name).config.partition(":")
    config: type[Any] = getattr(importlib.import_module(module), kind)
    return config


def defaults(name: str) -> dict[str, Any]:
    """An algorithm's settings where nothing is said, by dotted names."""
    return config_file.flat(config_file.to_json(config_type(name)()))


def options(name: str) -> list[str]:
    """The dotted names of an algorithm's own options."""
    return [option for option in defaults(name) if not option.startswith("env.")]


def make(name: str, task: Task, config: Any) -> Algorithm[Any]:
    """An algorithm ready to learn."""
    entry = find(name)
    learner = getattr(importlib.import_module(entry.module), entry.learner)
    algorithm: Algorithm[Any] = learner(task, config, name)
    return algorithm
