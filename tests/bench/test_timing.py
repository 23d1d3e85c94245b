import jax
import pytest

from pombu.bench.workload import CompileClock, Times, take_turns


def test_a_ratio_is_the_median_over_rounds_not_the_ratio_of_medians() -> None:
    times = Times({"a": [2.0, 9.0, 6.0], "b": [1.0, 1.0, 6.0]})
    assert times.ratio("a", "b") == 2.0
    assert times.median("a") == 6.0


def test_pieces_take_turns_after_a_warm_up() -> None:
    calls: list[str] = []
    pieces = {name: lambda name=name: calls.append(name) for name in "ab"}
    times = take_turns(pieces, repeats=3, budget=60.0)
    assert calls == ["a", "b"] * 4
    assert {name: len(spent) for name, spent in times.rounds.items()} == {
        "a": 3,
        "b": 3,
    }


@pytest.mark.parametrize(("repeats", "rounds"), [(1, 1), (2, 2), (9, 2)])
def test_two_rounds_are_taken_even_when_time_is_up(repeats: int, rounds: int) -> None:
    times = take_turns({"a": lambda: None}, repeats, budget=0.0)
    assert len(times.rounds["a"]) == rounds


def test_compiling_is_timed_only_inside() -> None:
    with CompileClock() as clock:
        jax.jit(lambda x: x + 1)(1.0)
    spent = clock.seconds
    assert spent > 0
    jax.jit(lambda x: x + 2)(1.0)
    assert clock.seconds == spent
