"""Loggers write every metric; events are read back from the files themselves."""

import importlib.util
import types
from pathlib import Path
from typing import Any

import pytest
import toy
import wandb
from tensorboardX.proto.event_pb2 import Event
from toy import new_run, train

from pombu.errors import RunError, UsageError
from pombu.training.display import TensorBoard, WeightsAndBiases
from pombu.training.run import open_run


def scalars(folder: Path) -> dict[str, list[int]]:
    """Steps by tag, from TensorFlow's record format: length, check, data, check."""
    found: dict[str, list[int]] = {}
    for path in sorted(folder.glob("events*")):
        data, position = path.read_bytes(), 0
        while position < len(data):
            length = int.from_bytes(data[position : position + 8], "little")
            event = Event()
            event.ParseFromString(data[position + 12 : position + 12 + length])
            position += 16 + length
            for value in event.summary.value:
                found.setdefault(value.tag, []).append(event.step)
    return found


def test_tensorboard_holds_every_metric(tmp_path: Path) -> None:
    run = new_run(tmp_path / "run")
    train(run, callbacks=[TensorBoard()])
    found = scalars(run.path / "tensorboard")
    every = list(range(24, toy.TOTAL_STEPS + 1, toy.STEPS_PER_ITERATION))
    assert found["train/return_real"] == every
    assert found["machine/fit_seconds"] == every


def test_wandb_keeps_its_id_when_a_run_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[dict[str, Any]] = []
    logged: list[dict[str, float]] = []

    def init(**settings: Any) -> Any:
        opened.append(settings)
        return types.SimpleNamespace(log=logged.append, finish=lambda: None)

    monkeypatch.setattr(wandb, "init", init)
    run = new_run(tmp_path / "run")
    train(run, callbacks=[WeightsAndBiases()])
    longer = open_run(run.path).extend(toy.TOTAL_STEPS + 24)
    train(longer, callbacks=[WeightsAndBiases()])
    assert opened[0]["id"] == opened[1]["id"]
    assert opened[1]["resume"] == "allow"
    assert opened[0]["config"]["algorithm"] == "toy"
    assert len(logged) == 11
    assert logged[0]["real_steps"] == 24
    assert "train/loss" in logged[0]


@pytest.mark.parametrize("logger", [TensorBoard, WeightsAndBiases])
def test_a_missing_package_names_its_extra(
    logger: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pip install 'pombu\["):
        logger()


def test_wandb_that_does_not_start_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def init(**settings: Any) -> Any:
        raise OSError("no network")

    monkeypatch.setattr(wandb, "init", init)
    with pytest.raises(RunError, match=r"no network.*WANDB_MODE=offline"):
        train(new_run(tmp_path / "run"), callbacks=[WeightsAndBiases()])
