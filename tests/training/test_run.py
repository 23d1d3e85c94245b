import dataclasses
import json
import os
import stat
from pathlib import Path
from typing import Literal

import pytest

from pombu.envs import EnvConfig
from pombu.errors import RunError, UsageError
from pombu.training import config_file, run
from pombu.training.run import RunSpec

SPEC = RunSpec("pombu", "fast", seed=1, total_steps=100, config={"alpha": 0.5})


def test_a_run_folder_reads_back(tmp_path: Path) -> None:
    created = run.create(tmp_path / "deep" / "run", SPEC)
    assert run.open_run(created.path) == created


def test_an_empty_folder_may_become_a_run(tmp_path: Path) -> None:
    assert run.create(tmp_path, SPEC).spec == SPEC


def test_an_existing_run_is_refused(tmp_path: Path) -> None:
    run.create(tmp_path / "run", SPEC)
    with pytest.raises(UsageError, match=r"already holds a run: .* `pombu resume"):
        run.create(tmp_path / "run", SPEC)
    (tmp_path / "run" / "config.json").write_text("damaged")
    with pytest.raises(UsageError, match=r"already holds a run"):
        run.create(tmp_path / "run", SPEC)


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_anything_in_the_way_is_refused(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "run"
    if kind == "folder":
        path.mkdir()
        (path / "thesis.tex").touch()
    else:
        path.touch()
    with pytest.raises(UsageError, match="exists already: choose another --out"):
        run.create(path, SPEC)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["run"]


def test_no_run_at_all_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a run folder"):
        run.open_run(tmp_path)


@pytest.mark.parametrize("content", ["{", "[]", '{"format": 2}', '{"format": 1}'])
def test_an_unusable_config_is_refused(tmp_path: Path, content: str) -> None:
    created = run.create(tmp_path / "run", SPEC)
    (created.path / "config.json").write_text(content)
    with pytest.raises(UsageError, match=r"config\.json"):
        run.open_run(created.path)


@pytest.mark.parametrize("field", ["total_steps", "checkpoint_every", "seed"])
def test_numbers_that_make_no_sense_are_refused(field: str) -> None:
    with pytest.raises(UsageError, match=field):
        dataclasses.replace(SPEC, **{field: -1})


def test_a_place_that_cannot_be_written_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(RunError, match=r"could not create .*run \(Permission denied\)"):
        run.create(tmp_path / "run", SPEC)


def test_a_read_only_folder_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    created = run.create(tmp_path / "run", SPEC)
    # Root may write anywhere, so a folder stands where the lock would be.
    (created.path / "lock").mkdir()
    with pytest.raises(RunError, match="make the folder writable"), created.locked():
        pass


def test_the_lock_is_given_back(tmp_path: Path) -> None:
    created = run.create(tmp_path / "run", SPEC)
    for _ in range(2):
        with created.locked():
            assert (created.path / "lock").read_text() == str(os.getpid())


def test_the_lock_keeps_others_out(tmp_path: Path) -> None:
    created = run.create(tmp_path / "run", SPEC)
    with (
        created.locked(),
        pytest.raises(UsageError, match=f"in use by process {os.getpid()}"),
        created.locked(),
    ):
        pass


def test_every_start_is_recorded(tmp_path: Path) -> None:
    created = run.create(tmp_path / "run", SPEC)
    created.record_start()
    created.record_start()
    starts = json.loads((created.path / "versions.json").read_text())
    assert len(starts) == 2
    assert starts[0]["git"] is None or len(starts[0]["git"]["commit"]) == 40


def test_files_are_readable_by_others(tmp_path: Path) -> None:
    created = run.create(tmp_path / "run", SPEC)
    mode = (created.path / "config.json").stat().st_mode
    assert mode & stat.S_IROTH


@dataclasses.dataclass(frozen=True)
class Inner:
    hidden: tuple[int, ...] = (64, 64)
    kind: Literal["a", "b"] = "a"
    limit: float | None = None


@dataclasses.dataclass(frozen=True)
class Config:
    members: int
    rate: float = 0.1
    inner: Inner = Inner()
    env: EnvConfig = dataclasses.field(default_factory=EnvConfig)


def test_a_config_survives_json() -> None:
    config = Config(3, 0.25, Inner((8,), "b", 2.0), EnvConfig("x", horizon=7))
    data = json.loads(json.dumps(config_file.to_json(config)))
    assert config_file.from_json(Config, data) == config


def test_a_field_of_a_newer_version_takes_its_default() -> None:
    assert config_file.from_json(Config, {"members": 2}) == Config(2)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({}, "config.members is missing"),
        ({"members": 1, "x": 2}, "config.x is not a field"),
        ({"members": "many"}, "config.members is 'many', which is not a whole number"),
        ({"members": True}, "config.members is True"),
        ({"members": 1, "inner": {"kind": "c"}}, "config.inner.kind is 'c'"),
        ({"members": 1, "inner": {"limit": "x"}}, "which is not a number or None"),
        ({"members": 1, "inner": 3}, "config.inner is 3"),
        ({"members": 1, "inner": {"hidden": [1.5]}}, r"config.inner.hidden\[\] is 1.5"),
        ({"members": 1, "env": {"horizon": 0}}, "horizon is 0"),
    ],
)
def test_a_wrong_field_is_named(data: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        config_file.from_json(Config, data)
