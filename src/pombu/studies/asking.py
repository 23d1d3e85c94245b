"""The command that asks for a run, from what its folder says was asked for."""

import shlex
from typing import Any

from pombu import presets
from pombu.algorithms.registry import defaults
from pombu.envs import short_name
from pombu.envs.lookup import find_entry
from pombu.training.config_file import flat, to_json
from pombu.training.run import RunSpec


def command_for(spec: RunSpec) -> str:
    """A `pombu train` that asks for the same run.

    Options are those in which it differs from its preset as that is today. A task that
    is code outside pombu is not made for this, and none of its options are named.
    """
    env = spec.config["env"]
    name = short_name(env["id"]) if find_entry(env["id"]) else env["id"]
    words = ["pombu", "train", "--algo", spec.algorithm, "--env", name]
    words += ["--preset", spec.preset, "--seed", str(spec.seed)]
    words += ["--total-steps", str(spec.total_steps)]
    for name in ("horizon", "observation_noise", "alive_bonus"):
        if env.get(name):
            words += [f"--{name.replace('_', '-')}", f"{env[name]:g}"]
    if not env.get("observe_y", True):
        words.append("--no-observe-y")
    return shlex.join([*words, *_changes(spec)])


def _changes(spec: RunSpec) -> list[str]:
    env = spec.config["env"]
    if ":" in env["id"]:
        return []
    usual = presets.preset(spec.algorithm, spec.preset, env["id"], env.get("horizon"))
    today = flat(to_json(usual))
    # What a run does not say, because its version did not know of it, is the default.
    have = {**defaults(spec.algorithm), **flat(spec.config)}
    words = []
    for key, value in have.items():
        if not key.startswith("env.") and key in today and value != today[key]:
            words += _flag(key.replace("_", "-"), value)
    return words


def _flag(name: str, value: Any) -> list[str]:
    if isinstance(value, bool):
        *parents, last = name.split(".")
        return [f"--{'.'.join([*parents, last if value else f'no-{last}'])}"]
    if isinstance(value, list | tuple):
        return [f"--{name}", *map(str, value)]
    return [f"--{name}", str(value)]
