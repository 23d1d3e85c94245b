"""Every number of every config has a range, and what lies outside it is refused."""

import dataclasses
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest

from pombu.algorithms import registry
from pombu.cli import main
from pombu.envs import EnvConfig
from pombu.errors import Range, UsageError, range_of, require_ranges
from pombu.training import config_file

NONSENSE: dict[type[Any], tuple[Any, ...]] = {
    int: (-(10**30), 10**20, True),
    float: (float("nan"), float("inf"), -float("inf"), -1e30, 1e20),
}
"""Of the right type, because the tests check types before configs do."""


def numbers_of(kind: type[Any], path: str = "") -> Iterator[tuple[str, type[Any], Any]]:
    """Dotted name, dataclass and type of every field of a config that is a number."""
    hints = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        hint = hints[field.name]
        if dataclasses.is_dataclass(hint):
            yield from numbers_of(typing.cast(type[Any], hint), f"{path}{field.name}.")
        elif {int, float} & {hint, *typing.get_args(hint)}:
            yield path + field.name, kind, hint


@pytest.mark.parametrize("name", registry.ALGORITHMS)
def test_every_number_has_a_range_and_nonsense_is_refused(name: str) -> None:
    kind = registry.config_type(name)
    default = kind()
    for key, owner, hint in numbers_of(kind):
        *parents, field = key.split(".")
        assert range_of(owner, field) is not None, f"{key} has no range"
        part: Any = default
        for parent in parents:
            part = getattr(part, parent)
        number = int if int in (hint, *typing.get_args(hint)) else float
        for value in NONSENSE[number]:
            given = (value,) if typing.get_origin(hint) is tuple else value
            with pytest.raises(UsageError, match=f"{field} is .*must be") as caught:
                dataclasses.replace(part, **{field: given})
            # An option of the environment has a flag without a prefix.
            expected = field if parents[:1] == ["env"] else key
            assert str(caught.value).startswith(f"{expected} is {value!r}")


@pytest.mark.parametrize(
    ("interval", "inside", "outside"),
    [
        ("[0, 1)", (0, 0.5), (-0.1, 1, float("nan"))),
        ("(0, 1]", (1e-9, 1), (0, 1.1, float("inf"))),
        ("[-1e3, 1e3]", (-1000, 0, 1000), (1001,)),
    ],
)
def test_an_interval_holds_its_ends_where_it_says_so(
    interval: str, inside: tuple[float, ...], outside: tuple[float, ...]
) -> None:
    assert all(value in Range(interval) for value in inside)
    assert not any(value in Range(interval) for value in outside)


def test_several_numbers_and_none() -> None:
    @dataclasses.dataclass(frozen=True)
    class Config:
        sizes: tuple[Annotated[int, Range("[1, 9]")], ...] = (1, 2)
        limit: Annotated[float, Range("(0, 1)")] | None = None

    require_ranges(Config())
    require_ranges(Config(sizes=()))
    with pytest.raises(UsageError, match=r"part\.sizes is 0; .* whole .*\[1, 9\]\."):
        require_ranges(Config(sizes=(3, 0)), "part")
    with pytest.raises(UsageError, match="sizes is 5; it must be a list"):
        require_ranges(Config(sizes=typing.cast(Any, 5)))
    with pytest.raises(UsageError, match=r"limit is 1; .*\(0, 1\), or None\."):
        require_ranges(Config(limit=1))
    for wrong in ("x", 2.5, True, None):
        with pytest.raises(UsageError, match=f"sizes is {wrong!r}; it must be a whole"):
            require_ranges(Config(sizes=(typing.cast(Any, wrong),)))


@pytest.mark.parametrize(
    ("flag", "key"),
    [
        ("--policy.learning-rate=-1", "policy.learning_rate is -1.0"),
        ("--returns.reward-clip=nan", "returns.reward_clip is nan"),
        ("--model.hidden=-1", "model.hidden is -1"),
        ("--horizon=100000000000000000000", "horizon is 1"),
        ("--imagination.runaway=-5", "imagination.runaway is -5"),
        ("--total-steps=0", "total_steps is 0"),
        ("--target-return=nan", "the target return is nan"),
        ("--max-minutes=nan", "the limit is nan"),
    ],
)
def test_the_command_line_names_flag_value_and_range(
    flag: str, key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    where = ["--env", "Point2D", "--preset", "smoke", "--out", str(out)]
    assert main(["train", *where, flag]) == 2
    said = capsys.readouterr().err
    assert key in said
    assert said.count("\n") == 1
    assert not out.exists()


def test_a_file_is_held_to_the_same_ranges() -> None:
    with pytest.raises(UsageError, match="horizon is 0"):
        config_file.from_json(EnvConfig, {"horizon": 0})
