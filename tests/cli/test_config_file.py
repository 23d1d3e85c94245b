"""Config files: what a run's `config.json` holds makes the same run again."""

import dataclasses
import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pombu import MEPPO, POMBU, UsageError
from pombu.agent.runs import read_config
from pombu.cli import main
from pombu.cli.train import parse_train
from pombu.envs import load
from pombu.training.config_file import to_toml, without_none_texts
from pombu.training.metrics import deterministic, read_rows
from pombu.training.run import RunSpec, open_run

SMALL = [
    *("--env", "Point2D", "--preset", "smoke", "--seed", "3", "--horizon", "30"),
    *("--updates", "1", "--exploration.policies", "1"),
    *("--evaluation-share", "0.5", "--keep-checkpoints", "2", "--total-steps", "120"),
]
"""Of the preset's sizes, so that its programs are compiled once for many tests."""
HAND_WRITTEN = """
algorithm = "meppo"
env = "Ant"
preset = "paper"
seed = 7
total_steps = 5000

[config]
updates = 3
"model.members" = 4
policy.hidden = [8, 8]
env.horizon = 1000

[config.value]
epochs = 2
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "trained"
    assert main(["train", *SMALL, "--out", str(folder)]) == 0
    return folder


def written(folder: Path, text: str, name: str = "run.toml") -> str:
    path = folder / name
    path.write_text(text)
    return str(path)


def spec_of(arguments: list[str]) -> RunSpec:
    """What a run folder would say."""
    command = parse_train(arguments)
    env: Any = command.environment
    return command.spec(load(env), dataclasses.replace(command.config, env=env))


def as_json(spec: RunSpec) -> Any:
    """JSON has no tuples."""
    return json.loads(json.dumps(dataclasses.asdict(spec)))


def require_same_run(one: Path, other: Path) -> None:
    assert (one / "config.json").read_bytes() == (other / "config.json").read_bytes()
    first, second = (read_rows(folder / "metrics.csv")[1] for folder in (one, other))
    assert list(map(deterministic, first)) == list(map(deterministic, second))
    (last,) = {sorted((f / "checkpoints").iterdir())[-1].name for f in (one, other)}
    for file in (f"checkpoints/{last}/state.safetensors", "evaluation.json"):
        assert (one / file).read_bytes() == (other / file).read_bytes()


def test_a_runs_config_makes_the_same_run(trained: Path, tmp_path: Path) -> None:
    again = tmp_path / "again"
    config = str(trained / "config.json")
    assert main(["train", "--config", config, "--out", str(again)]) == 0
    require_same_run(trained, again)


def test_in_python_too(trained: Path, tmp_path: Path) -> None:
    agent = POMBU.from_config(trained)
    assert agent.seed == 3
    agent.learn(out=tmp_path / "again")
    spec, again = open_run(trained).spec, open_run(tmp_path / "again").spec
    assert again == spec
    rows = read_rows(trained / "metrics.csv")[1]
    assert [*map(deterministic, agent.history)] == [*map(deterministic, rows)]


def test_what_is_printed_is_the_same_config(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", *SMALL, "--print-config"]) == 0
    path = written(tmp_path, capsys.readouterr().out)
    assert as_json(spec_of(["--config", path])) == as_json(open_run(trained).spec)
    assert main(["train", "--config", path, "--print-config"]) == 0
    assert capsys.readouterr().out == Path(path).read_text()


@pytest.mark.parametrize("algorithm", ["pombu", "pets", "ppo", "mbpo"])
@pytest.mark.parametrize("preset", ["paper", "smoke"])
def test_every_kind_of_value_goes_through_a_file(
    algorithm: str, preset: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--env", "HalfCheetah", "--algo", algorithm, "--preset", preset]
    assert main(["train", *flags, "--print-config"]) == 0
    path = written(tmp_path, capsys.readouterr().out)
    assert spec_of(["--config", path]) == spec_of(flags)


def test_a_file_by_hand_is_completed_by_its_preset(tmp_path: Path) -> None:
    path = written(tmp_path, HAND_WRITTEN)
    spec = spec_of(["--config", path])
    flags = ["--env", "Ant", "--algo", "meppo", "--preset", "paper", "--seed", "7"]
    flags += ["--horizon", "1000", "--updates", "3", "--model.members", "4"]
    flags += ["--policy.hidden", "8", "8", "--value.epochs", "2"]
    assert spec == spec_of([*flags, "--total-steps", "5000"])
    as_json = json.dumps(tomllib.loads(HAND_WRITTEN))
    assert spec_of(["--config", written(tmp_path, as_json, "run.json")]) == spec


def test_flags_win(tmp_path: Path) -> None:
    path = written(tmp_path, HAND_WRITTEN)
    spec = spec_of(
        f"--config {path} --env HalfCheetah --seed=1 --model.members 2 --horizon 100 "
        "--total-steps 900 --evaluation-share inf".split()
    )
    assert (spec.seed, spec.total_steps, spec.evaluation_share) == (1, 900, None)
    assert spec.config["env"]["id"] == "pombu/HalfCheetah-v0"
    assert spec.config["env"]["horizon"] == 100
    assert spec.config["model"]["members"] == 2
    assert spec.config["updates"] == 3


def test_another_plan_has_its_own_steps(tmp_path: Path) -> None:
    path = written(tmp_path, HAND_WRITTEN)
    spec = spec_of(["--config", path, "--iterations", "2"])
    assert spec.total_steps == 2 * spec.config["trajectories"] * 1000
    smoke = written(tmp_path, 'env = "Point2D"\npreset = "smoke"', "smoke.toml")
    assert spec_of(["--config", smoke]).last_iteration == 8
    assert spec_of(["--config", smoke, "--total-steps", "9"]).last_iteration is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("algoritm = 'pombu'", "unknown key algoritm; .* did you mean algorithm?"),
        ("alpha = 1", r"unknown key alpha; .* options belong into \[config\]"),
        ("seed = 'one'", "seed is 'one', which is not a whole number"),
        ("seed = -1", "seed is -1"),
        ("total_steps = 0", "total_steps is 0; it must be a whole number"),
        ("env = 3", "env is 3, and a table"),
        ("config = 3", "config is 3, and a table"),
        ("env = 'HalfCheeta'", "'HalfCheeta'"),
        ("env.horizen = 3", r"'env.horizen' \(did you mean env.horizon\?"),
        ("env.horizon = -3", "horizon is -3"),
        ("algorithm = 'sca'", "'sca'.* did you mean sac?"),
        ("preset = 'quick'", "There is no preset 'quick'"),
        ("config.alfa = 1", r"'alfa' \(did you mean alpha\?"),
        ("config.alpha = 'big'", "alpha is 'big', which is not a number"),
        ("config.model.members = 0", "model.members is 0; it must be a whole number"),
        ("config.'model.member' = 1", r"did you mean model.members\?"),
        ("config.bonus = 1", "pombu has no option 'bonus'"),
        ("seed = ", "no valid TOML: Invalid value"),
        ("format = 9", "not written by this version"),
        ("env = 'my_module:make'", "code outside pombu: .*--env my_module:make"),
    ],
)
def test_a_mistake_in_a_file_is_one_sentence(
    text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, text)
    with pytest.raises(UsageError, match=said):
        parse_train(["--config", path])
    assert main(["train", "--config", path, "--print-config"]) == 2
    error = capsys.readouterr().err
    assert "run.toml" in error or "There is no" in error
    assert error.count("\n") == 1


def test_files_that_cannot_be_used(trained: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"nowhere.toml cannot be read"):
        read_config(tmp_path / "nowhere.toml")
    with pytest.raises(UsageError, match="no valid JSON"):
        read_config(written(tmp_path, "{", "run.json"))
    with pytest.raises(UsageError, match="must be a table"):
        read_config(written(tmp_path, "[]", "run.json"))
    with pytest.raises(UsageError, match="--preset changes nothing"):
        parse_train(["--config", str(trained), "--preset", "paper"])
    with pytest.raises(UsageError, match="is about pombu, not meppo"):
        MEPPO.from_config(trained)


def test_python_overrides_a_file(tmp_path: Path) -> None:
    path = written(tmp_path, HAND_WRITTEN)
    agent = MEPPO.from_config(path, env="Point2D", seed=1, updates=2)
    assert (agent.seed, agent.config.updates) == (1, 2)
    assert agent.config.env.id == "pombu/Point2D-v0"
    assert agent.config.model.members == 4
    assert repr(agent).startswith("MEPPO('Point2D', preset='paper', seed=1)")


def test_the_last_iteration_of_a_file_ends_learning(tmp_path: Path) -> None:
    text = 'env = "Point2D"\npreset = "smoke"\ntotal_steps = 400\nlast_iteration = 1\n'
    agent = POMBU.from_config(written(tmp_path, text + "[config]\nupdates = 1\n"))
    agent.learn(out=tmp_path / "run")
    assert [row["iteration"] for row in agent.history] == [1]
    spec = open_run(tmp_path / "run").spec
    assert (spec.total_steps, spec.last_iteration) == (400, 1)
    assert (tmp_path / "run" / "evaluation.json").exists()


keys = st.text(min_size=1, max_size=8)
scalars = st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text()
scalars |= st.floats(allow_nan=False)
values = scalars.filter(lambda value: value != "None") | st.lists(scalars, max_size=3)


@given(
    st.dictionaries(
        keys, values | st.dictionaries(keys, values | st.dictionaries(keys, values))
    )
)
def test_toml_is_read_back(tree: dict[str, Any]) -> None:
    def spelt(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: spelt(one) for key, one in value.items()}
        if isinstance(value, list):
            return ["None" if one is None else one for one in value]
        return value

    assert without_none_texts(tomllib.loads(to_toml(tree))) == spelt(tree)
