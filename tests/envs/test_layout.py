"""Dict and Tuple observations: how they are laid out, named and flattened again."""

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from pombu.agent.numpy_policy import flatten
from pombu.envs import load
from pombu.envs.collection import constant_end
from pombu.envs.task import EnvConfig, config_of
from pombu.envs.wrappers import leaves_of
from pombu.errors import UsageError
from pombu.training.run import Run, RunSpec

SPACES: list[spaces.Space[Any]] = [
    spaces.Dict(goal=spaces.Box(-1, 1, (2,)), arm=spaces.Box(-1, 1, (2, 3))),
    spaces.Tuple((spaces.Box(0, 1, ()), spaces.Discrete(3, start=2))),
    spaces.Dict(
        a=spaces.Tuple((spaces.MultiDiscrete([2, 4]), spaces.Box(0, 9, (1,)))),
        b=spaces.Discrete(2),
    ),
]


@pytest.mark.parametrize("space", SPACES, ids=["dict", "tuple", "nested"])
def test_an_export_flattens_as_gymnasium_does(space: spaces.Space[Any]) -> None:
    space.seed(0)
    parts = [leaf.described for leaf in leaves_of(space)]
    assert sum(part["size"] for part in parts) == spaces.flatdim(space)
    for _ in range(20):
        observation = space.sample()
        expected = spaces.flatten(space, observation)
        np.testing.assert_array_equal(flatten(parts, observation), expected)


def test_batches_of_parts_are_flattened_row_by_row() -> None:
    space = SPACES[0]
    parts = [leaf.described for leaf in leaves_of(space)]
    rows = [space.sample() for _ in range(4)]
    batch = {key: np.stack([row[key] for row in rows]) for key in rows[0]}
    expected = np.stack([spaces.flatten(space, row) for row in rows])
    np.testing.assert_array_equal(flatten(parts, batch), expected)


def test_entries_are_named_by_their_path() -> None:
    names = [name for leaf in leaves_of(SPACES[2]) for name in leaf.names]
    assert names[:2] == ["a.0[0]", "a.0[1]"]
    assert names[-3:] == ["a.1", "b[0]", "b[1]"]


def test_joints_name_what_a_cheetah_sees() -> None:
    task = load("HalfCheetah")
    names = task.frame_names
    assert len(names) == task.frame_dim == len(set(names))
    assert "rooty" in names
    assert "bfoot velocity" in names


@pytest.mark.parametrize(
    ("lengths", "ends", "expected"),
    [
        ((50,) * 10, (True,) * 10, 50),
        ((50,) * 10, (False,) * 10, None),
        ((50,) * 9 + (49,), (True,) * 10, None),
        ((50,), (True,), None),
        ((5,) * 4, (True,) * 4, None),
        ((5,) * 12, (True,) * 12, 5),
    ],
    ids=["like clockwork", "truncated", "one sooner", "single", "short", "many short"],
)
def test_ends_like_clockwork_are_a_time_limit(
    lengths: tuple[int, ...], ends: tuple[bool, ...], expected: int | None
) -> None:
    assert constant_end(lengths, ends) == expected


class Nested:
    """Holds factories that can, and cannot, be named."""

    class Env(gymnasium.Env[Any, Any]):
        """Never made."""

    def make(self) -> gymnasium.Env[Any, Any]:
        """Never called."""
        return Nested.Env()


def test_a_nested_class_is_named_and_a_bound_method_is_not() -> None:
    named = config_of(Nested.Env)
    assert named.id == f"{__name__}:Nested.Env"
    assert ":Nested.make" not in config_of(Nested().make).id


def test_another_layout_is_refused(tmp_path: Path) -> None:
    first, second = (
        [leaf.described for leaf in leaves_of(space)] for space in SPACES[:2]
    )
    run = Run(tmp_path, RunSpec("pombu", "smoke", 0, 1, {}))
    run.record_observation(first)
    run.record_observation(first)
    with pytest.raises(UsageError, match=r"observation\.json"):
        run.record_observation(second)


def test_a_box_needs_no_layout(tmp_path: Path) -> None:
    assert load(EnvConfig(id="Point2D")).observation_parts is None
