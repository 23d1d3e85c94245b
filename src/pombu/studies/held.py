"""Runs that exist already: which of them answers what is asked for."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pombu.algorithms.registry import defaults
from pombu.analysis.curves import Curve, find_curves
from pombu.envs import CATALOGUE, EnvConfig
from pombu.studies.study import Job, Planned
from pombu.training.config_file import flat
from pombu.training.run import RunSpec

DISTINGUISHING = (
    *("alpha", "minimum_kl", "beta", "exploration.policies"),
    *("model.kind", "model.reward", "returns.uncertainty_units"),
    *("returns.correlation", "returns.recalibrate", "value.clock"),
    *("draw", "stop_rule.use", "kappa", "weighting"),
)
"""Options by which a run of the same algorithm and preset is another experiment."""


EXPLORATION = "exploration"
"""A folder of trials, whose settings were changed while they were looked at."""


def find_settled(folders: Iterable[Path]) -> list[Curve]:
    """The runs in folders at any depth, without those of an exploration folder there.

    Raises:
        UsageError: One of them is no folder.
    """
    return find_curves(folders, without=EXPLORATION)


def answers(spec: RunSpec, job: Job, config: Mapping[str, object]) -> bool:
    """Whether a run is what a job asks for.

    Algorithm, preset, seed and environment must be the same, and so must every option
    that is overridden or tells experiments apart; other values of a preset may have
    changed between versions. What a run does not say, because its version did not know
    of it, is the algorithm's default.
    """
    asked = (job.algorithm, job.preset, job.seed)
    if (spec.algorithm, spec.preset, spec.seed) != asked:
        return False
    have = _config(spec)
    keys = [key for key, _ in job.overrides] + [
        k for k in DISTINGUISHING if k in config
    ]
    if any(have[key] != config[key] for key in keys):
        return False
    return _environment(have) == _environment(config)


def departed(spec: RunSpec, config: Mapping[str, object]) -> list[str]:
    """Settings in which a run differs from what a new one would have."""
    have = _config(spec)
    return [
        f"{key} = {have[key]}"
        for key in config
        if not key.startswith("env.") and have[key] != config[key]
    ]


def find_held(
    planned: Sequence[Planned], known: Iterable[Curve]
) -> dict[Path, tuple[Path, int]]:
    """Planned runs that exist elsewhere: where, and how many real steps they have.

    The whole config, the environment and the seed must be the same, and the steps at
    least as many.
    """
    found: dict[Path, tuple[Path, int]] = {}
    for curve in known:
        steps = int(curve.rows[-1]["real_steps"])
        for one in planned:
            if steps >= one.spec.total_steps and _is_same(curve.run.spec, one.spec):
                found.setdefault(one.path, (curve.run.path, steps))
    return found


def _is_same(spec: RunSpec, wanted: RunSpec) -> bool:
    asked = (wanted.algorithm, wanted.preset, wanted.seed)
    if (spec.algorithm, spec.preset, spec.seed) != asked:
        return False
    config = flat(wanted.config)
    if departed(spec, config):
        return False
    return _environment(_config(spec)) == _environment(config)


def _config(spec: RunSpec) -> dict[str, Any]:
    return {**defaults(spec.algorithm), **flat(spec.config)}


def _environment(config: Mapping[str, object]) -> tuple[object, ...]:
    """What an environment is, with defaults written out."""
    name = config["env.id"]
    own = next((entry.horizon for entry in CATALOGUE if entry.id == name), None)
    # What a run does not say, because its version did not know of it, is the default.
    given = {**EnvConfig().options, "horizon": own, "alive_bonus": 0.0}
    for option, usual in given.items():
        said = config.get(f"env.{option}")
        given[option] = usual if said is None else said
    return name, *given.values()
