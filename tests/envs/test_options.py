"""Every option of `EnvConfig` reaches every place that asks for an environment.

The tests go over the dataclass's fields, so that an option needs no line here.
"""

import dataclasses
import shlex
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

from pombu.algorithms.registry import preset
from pombu.analysis.results_page import train_command
from pombu.cli import parsing
from pombu.cli.lists import CheckEnv
from pombu.cli.train import parse_train
from pombu.envs import EnvConfig
from pombu.paper.panel_runs import answers
from pombu.studies.study_file import read_study
from pombu.training.config_file import flat, from_json, to_json

OPTIONS = [field.name for field in dataclasses.fields(EnvConfig) if field.name != "id"]


def another(name: str) -> Any:
    """A value of an option that is not the default one."""
    kind = get_type_hints(EnvConfig)[name]
    usual = getattr(EnvConfig(), name)
    kinds = get_args(kind) or (kind,)
    if isinstance(usual, bool):
        return not usual
    if isinstance(kinds[0], str):
        return next(one for one in kinds if one != usual)
    return 0.5 if float in kinds else 3


def flags(name: str, value: Any) -> list[str]:
    dashed = name.replace("_", "-")
    if isinstance(value, bool):
        return [f"--{dashed}" if value else f"--no-{dashed}"]
    return [f"--{dashed}", str(value)]


@pytest.mark.parametrize("name", OPTIONS)
def test_an_option_travels_whole(name: str, tmp_path: Path) -> None:
    value = another(name)
    wanted = EnvConfig("pombu/Ant-v0", **{name: value})
    assert wanted.changed == {name: value}

    # Flags of commands.
    command = parse_train(["--env", "Ant", "--preset", "smoke", *flags(name, value)])
    assert command.environment == wanted
    checked = parsing.parse(CheckEnv, "check-env", ["Ant", *flags(name, value)])
    assert checked.options.of("pombu/Ant-v0") == wanted

    # A key of a study file, and the job's config and folder.
    file = tmp_path / "study.toml"
    spelled = repr(value).replace("'", '"').lower()
    file.write_text(f'algorithms = "ppo"\ntasks = "Ant"\n{name} = {spelled}\n')
    job = read_study(file).jobs()[0]
    assert job.config().env == wanted
    plain = dataclasses.replace(job, env=EnvConfig("Ant"))
    assert job.name != plain.name

    # A run's config file, the command that asks for it again, and reproductions.
    spec = job.spec()
    assert from_json(EnvConfig, spec.config["env"], "env") == wanted
    again = parse_train(shlex.split(train_command(spec))[2:])
    assert again.environment == wanted
    assert answers(spec, job, flat(to_json(job.config())))
    assert not answers(spec, plain, flat(to_json(plain.config())))


def test_the_preset_has_the_same_environment() -> None:
    assert preset("pombu", "smoke", "Ant").env == EnvConfig("pombu/Ant-v0")


@pytest.mark.parametrize("name", OPTIONS)
def test_a_study_names_key_line_and_value_of_a_wrong_option(
    name: str, tmp_path: Path
) -> None:
    file = tmp_path / "study.toml"
    file.write_text(f'algorithms = "ppo"\ntasks = "Ant"\n{name} = [7]\n')
    with pytest.raises(ValueError, match=rf"line 3, key {name}: it is \[7\]"):
        read_study(file)
