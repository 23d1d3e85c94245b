import json

import pytest

from pombu.cli import machine, main


def test_json_is_one_object_per_finding(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == 0
    found = {one["subject"]: one for one in json.loads(capsys.readouterr().out)}
    assert found["jax"]["state"][0].isdigit()
    assert found["device"]["state"].startswith("cpu")
    assert {"threads", "rendering", "free disk", "extra: wandb"} <= set(found)


def test_the_table_names_everything(capsys: pytest.CaptureFixture[str]) -> None:
    machine.show(machine.examine())
    printed = capsys.readouterr().out
    assert all(word in printed for word in ("mujoco", "threads", "rendering", "disk"))


def test_a_missing_extra_names_its_remedy() -> None:
    found = machine.extra("wandb", ("no-such-package",))
    assert found.remedy == "pip install 'pombu[wandb]'"
    assert not found.required


def test_the_table_keeps_the_brackets_of_a_remedy(
    capsys: pytest.CaptureFixture[str],
) -> None:
    machine.show([machine.extra("wandb", ("no-such-package",))])
    assert "pip install 'pombu[wandb]'" in capsys.readouterr().out


def test_a_missing_core_package_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = machine.package("no-such-package")
    assert missing.remedy == "pip install no-such-package"
    monkeypatch.setattr(machine, "examine", lambda: [missing])
    assert main(["doctor"]) == 1


def test_an_unusable_rendering_backend_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MUJOCO_GL", "disabled")
    found = machine.rendering()
    assert found.state == "not with disabled"
    assert "MUJOCO_GL" in found.remedy
