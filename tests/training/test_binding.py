"""A run's files belong together: what was changed, damaged or linked is named."""

import dataclasses
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import toy

from pombu.cli import main
from pombu.errors import RunError, UsageError
from pombu.files import (
    DamagedFileError,
    as_path,
    json_digest,
    sealed,
    temporary_name,
    write_atomic,
)
from pombu.studies import backends
from pombu.training import checkpoint, loop
from pombu.training import run as runs
from pombu.training.callbacks import Callback
from pombu.training.metrics import (
    MetricsFile,
    NothingLearnedError,
    checksum_of,
    require_learning,
)

CONFIG = {"gamma": 0.99, "policy": {"hidden": [64, 64]}}
STEPS = 3 * toy.STEPS_PER_ITERATION


class Heard(Callback):
    """Keeps every message."""

    def __init__(self) -> None:
        self.messages: list[str] = []

    def on_message(self, text: str) -> None:
        self.messages.append(text)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with a config."""
    path = tmp_path_factory.mktemp("trained") / "run"
    toy.train(runs.create(path, runs.RunSpec("toy", "none", 3, STEPS, CONFIG)))
    return path


@pytest.fixture
def folder(trained: Path, tmp_path: Path) -> Path:
    return shutil.copytree(trained, tmp_path / "run")


def go_on(folder: Path, steps: int = 2 * STEPS) -> list[str]:
    """Resume with more steps; gives what was said."""
    heard = Heard()
    run = runs.open_run(folder)
    with run.locked():
        run = run.extend(steps)
    toy.train(run, callbacks=[heard])
    return heard.messages


def edit(file: Path, seal: bool = False, **fields: Any) -> None:
    content = {**json.loads(file.read_text()), **fields}
    if seal:
        inner = {k: v for k, v in content.items() if k not in ("sha256", "format")}
        content["sha256"] = json_digest(inner)
    file.write_text(json.dumps(content))


@pytest.mark.parametrize("seal", [False, True])
@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"config": {**CONFIG, "gamma": 0.89}}, r"gamma = 0\.89 \(was 0\.99\)"),
        ({"seed": 4}, r"seed = 4 \(was 3\)"),
        (
            {"config": {**CONFIG, "policy": {"hidden": [64]}}},
            r"policy\.hidden = \[64\] \(was \[64, 64\]\)",
        ),
    ],
)
def test_a_changed_config_is_refused_with_the_difference(
    folder: Path, change: dict[str, Any], said: str, seal: bool
) -> None:
    """Also where somebody has made its checksum fit."""
    edit(folder / "config.json", seal, **change)
    with pytest.raises(UsageError, match=f"{said}; set it back"):
        go_on(folder)


def test_a_change_that_no_checkpoint_knows_of_is_refused_too(folder: Path) -> None:
    edit(folder / "config.json", total_steps=10_000)
    with pytest.raises(UsageError, match=r"not as pombu wrote it.*--total-steps"):
        runs.open_run(folder)


def test_layout_does_not_matter_and_old_configs_have_no_checksum(folder: Path) -> None:
    file = folder / "config.json"
    content = json.loads(file.read_text())
    file.write_text(json.dumps(dict(reversed(content.items())), indent=8))
    spec = runs.open_run(folder).spec
    content.pop("sha256")
    file.write_text(json.dumps(content))
    assert runs.open_run(folder).spec == spec


def test_every_flipped_digit_of_the_config_is_noticed(folder: Path) -> None:
    file = folder / "config.json"
    before = runs.open_run(folder).spec
    text = file.read_text()
    for position, letter in enumerate(text):
        if letter.isdigit():
            other = str((int(letter) + 1) % 10)
            file.write_text(text[:position] + other + text[position + 1 :])
            with pytest.raises(UsageError, match=r"run"):
                assert runs.open_run(folder).spec == before


def test_every_flipped_digit_of_the_metrics_is_noticed(folder: Path) -> None:
    file = folder / "metrics.csv"
    run = runs.open_run(folder)
    rows = run.rows()
    text = file.read_text()
    start = text.index("\n")
    for position, letter in enumerate(text[start:], start):
        if letter.isdigit() and position % 7 == 0:
            other = str((int(letter) + 5) % 10)
            file.write_text(text[:position] + other + text[position + 1 :])
            with pytest.raises(DamagedFileError, match=r"metrics\.csv"):
                assert run.rows() == rows
    file.write_text(text.replace(",1000,", ",1001,", 1))
    with pytest.raises(RunError, match=r"metrics\.csv is damaged .* iteration 3"):
        go_on(folder)


@pytest.mark.parametrize("name", ["evaluation.json", "versions.json"])
def test_every_flipped_digit_of_what_is_told_of_a_run_is_noticed(
    folder: Path, name: str
) -> None:
    run, file = runs.open_run(folder), folder / name
    told = {"evaluation.json": run.evaluation, "versions.json": run.starts}[name]
    text, before = file.read_text(), told()
    # A flip in the seal's own name leaves everything else as it was.
    masked = text.replace('"sha256"', "-" * 8)
    digits = [at for at, letter in enumerate(masked) if letter.isdigit()]
    for position in digits[::5]:
        other = str((int(text[position]) + 5) % 10)
        file.write_text(text[:position] + other + text[position + 1 :])
        with pytest.raises(DamagedFileError, match=name):
            assert told() == before


def test_evaluations_of_version_0_1_have_no_checksum(folder: Path) -> None:
    file = folder / "evaluation.json"
    content = json.loads(file.read_text())
    seal = content.pop("sha256")
    file.write_text(json.dumps(content))
    assert runs.open_run(folder).evaluation() == content
    assert sealed(content)["sha256"] == seal
    file.unlink()
    assert runs.open_run(folder).evaluation() is None


def test_what_is_no_path_is_said() -> None:
    assert as_path("out", "runs/x") == Path("runs/x")
    for wrong in (None, 3, object(), [], b"raw"):
        with pytest.raises(UsageError, match=r"out is .*give the path"):
            as_path("out", wrong)


def test_lost_metrics_begin_anew_and_it_is_said(folder: Path) -> None:
    (folder / "metrics.csv").unlink()
    assert any("metrics.csv is missing" in said for said in go_on(folder))
    assert [row["iteration"] for row in runs.open_run(folder).rows()] == [4, 5, 6]


def test_a_checksum_does_not_depend_on_later_columns(tmp_path: Path) -> None:
    file = MetricsFile(tmp_path / "metrics.csv")
    first = {"iteration": 1, "loss": 0.1}
    file.append(first)
    assert file.checksum == checksum_of([first])
    early = file.checksum
    file.append({"iteration": 2, "loss": 0.2, "kl": 1e-9})
    again = MetricsFile(tmp_path / "metrics.csv")
    assert again.checksum == file.checksum != early
    again.drop_after(1)
    assert again.checksum == early


@pytest.mark.parametrize(
    "name", ["lock", "metrics.csv", "log.txt", "00000.safetensors"]
)
def test_no_link_leads_out_of_the_folder(folder: Path, name: str) -> None:
    victim = folder.parent / "victim"
    victim.write_text("precious")
    link = folder / ("episodes" if "safe" in name else ".") / name
    link.unlink(missing_ok=True)
    link.symlink_to(victim)
    with pytest.raises(UsageError, match=rf"{name} is a symbolic link to .*victim"):
        go_on(folder)
    assert victim.read_text() == "precious"


@pytest.mark.parametrize("name", ["episodes", "checkpoints"])
def test_no_folder_elsewhere_is_cleaned(folder: Path, name: str) -> None:
    elsewhere = folder.parent / "elsewhere"
    (folder / name).rename(elsewhere)
    (folder / name).symlink_to(elsewhere)
    (elsewhere / ".mine.tmp").touch()
    with pytest.raises(UsageError, match=f"{name} is a symbolic link"):
        toy.train(runs.open_run(folder))
    assert (elsewhere / ".mine.tmp").exists()


@pytest.mark.parametrize("content", ["", "{", "{}", "[" * 100_000])
def test_damaged_versions_do_not_end_a_run(folder: Path, content: str) -> None:
    (folder / "versions.json").write_text(content)
    go_on(folder)
    assert len(json.loads((folder / "versions.json").read_text())) == 1
    assert (folder / "versions.json.damaged-1").read_text() == content


def test_deep_json_and_foreign_fields_are_no_bug(folder: Path) -> None:
    newest = checkpoint.paths(folder)[-1] / "manifest.json"
    content = json.loads(json.loads(newest.read_text())["manifest"])
    content["later"] = "an addition"
    text = json.dumps(content)
    seal = checkpoint.digest(text.encode())
    newest.write_text(json.dumps({"manifest": text, "sha256": seal}))
    assert checkpoint.read_manifest(newest.parent).iteration == 3
    newest.write_text("[" * 100_000)
    with pytest.raises(DamagedFileError, match="cannot be read"):
        checkpoint.read_manifest(newest.parent)
    (folder / "config.json").write_text("[" * 100_000)
    with pytest.raises(UsageError, match="nested too deeply"):
        runs.open_run(folder)


def test_cores_are_part_of_a_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved = checkpoint.newest(folder)
    assert saved is not None
    assert saved.cores == len(backends.available_cores())
    assert not any("cores" in said for said in go_on(folder))
    monkeypatch.setattr(loop, "usable_cores", lambda: 77)
    assert any("now it has 77" in said for said in go_on(folder, 3 * STEPS))


def test_resume_keeps_to_as_many_cores_as_before(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pombu.cli import train

    claimed: list[int] = []

    def claim(number: int) -> Any:
        claimed.append(number)
        return backends.contextlib.nullcontext()

    run, saved = runs.open_run(folder), checkpoint.newest(folder)
    assert saved is not None
    monkeypatch.setattr(train, "claimed_cores", claim)
    for now in (saved.cores or 1) + 1, saved.cores:
        monkeypatch.setattr(train, "usable_cores", lambda now=now: now)
        with train.cores_as_before(run):
            pass
    assert claimed == [saved.cores]


def test_anothers_folder_of_cores_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backends.tempfile, "gettempdir", lambda: str(tmp_path))
    folder = tmp_path / f"pombu-cores-{os.getuid()}"

    def claims() -> bool:
        with backends.contextlib.ExitStack() as stack:
            return backends._claim_core(stack, 0)

    assert claims()
    folder.chmod(0o777)
    assert not claims()
    shutil.rmtree(folder)
    folder.symlink_to(tmp_path)
    assert not claims()
    folder.unlink()
    folder.mkdir()
    (folder / "0").symlink_to(tmp_path / "victim")
    assert not claims()
    assert not (tmp_path / "victim").exists()


def test_a_stale_file_of_the_same_process_is_no_obstacle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getpid", lambda: 7)
    temporary_name(tmp_path / "data").touch()
    write_atomic(tmp_path / "data", b"new")
    assert (tmp_path / "data").read_bytes() == b"new"


def test_what_killed_creations_left_goes_with_the_next(tmp_path: Path) -> None:
    stale, fresh = tmp_path / ".run.1-a.tmp", tmp_path / ".run.2-b.tmp"
    stale.mkdir()
    fresh.mkdir()
    os.utime(stale, (0, 0))
    runs.create(tmp_path / "run", runs.RunSpec("toy", "none", 3, STEPS, {}))
    assert not stale.exists()
    assert fresh.exists()


def test_surplus_checkpoints_are_pruned_on_resuming(folder: Path) -> None:
    names = [path.name for path in checkpoint.paths(folder)]
    assert names == ["000001", "000002", "000003"]
    spec = dataclasses.replace(runs.open_run(folder).spec, keep_checkpoints=1)
    toy.train(runs.Run(folder, spec))
    assert [path.name for path in checkpoint.paths(folder)] == ["000003"]


def test_an_iteration_that_learned_nothing_is_an_error() -> None:
    masked = {"masked_trajectories": 16, "return_model": 0.0, "advantage_std": 1e-8}
    with pytest.raises(NothingLearnedError, match=r"iteration 2 .* all 16 imagined"):
        require_learning(masked, 2)
    for change in (
        {"masked_trajectories": 0},
        {"return_model": -3.0},
        {"advantage_std": 0.1},
    ):
        require_learning({**masked, **change}, 2)
    require_learning({}, 1)


def test_a_run_that_learns_nothing_ends_with_exit_code_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    arguments = ["--env", "Point2D", "--preset", "smoke", "--out", str(out)]
    assert main(["train", *arguments, "--imagination.runaway", "1e-9"]) == 1
    assert "learned nothing" in capsys.readouterr().err
    assert [path.name for path in checkpoint.paths(out)] == ["000001"]
