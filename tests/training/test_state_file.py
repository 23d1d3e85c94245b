from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from pombu.errors import UsageError
from pombu.training.checkpoint import state_from_bytes, state_to_bytes


class State(NamedTuple):
    net: Any
    optimiser: Any
    key: jax.Array
    iteration: np.int64
    mixed: dict[str, Any]


def make_state(seed: int) -> State:
    net = eqx.filter(eqx.nn.Linear(3, 2, key=jax.random.key(seed)), eqx.is_array)
    return State(
        net=net,
        optimiser=optax.adam(1e-3).init(net),
        key=jax.random.key(seed),
        iteration=np.int64(2**40 + seed),
        mixed={
            "bfloat16": jnp.arange(4, dtype=jnp.bfloat16) + seed,
            "transposed": np.arange(6).reshape(2, 3).T + seed,
            "empty": np.zeros((0, 3), np.float32),
            "count": 7 + seed,
            "rate": 0.1 + seed,
            "flag": bool(seed),
            "many_keys": jax.random.split(jax.random.key(seed), 3),
        },
    )


def raw(leaf: Any) -> np.ndarray:
    if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    return np.asarray(leaf)


def test_every_kind_of_leaf_comes_back() -> None:
    state = make_state(1)
    restored = state_from_bytes(state_to_bytes(state), make_state(0))
    assert jax.tree.structure(restored) == jax.tree.structure(state)
    for was, now in zip(jax.tree.leaves(state), jax.tree.leaves(restored), strict=True):
        assert type(now) is type(was)
        np.testing.assert_array_equal(raw(now), raw(was), strict=True)


def test_a_restored_key_draws_the_same_numbers() -> None:
    key = jax.random.key(3)
    restored = state_from_bytes(
        state_to_bytes({"key": key}), {"key": jax.random.key(0)}
    )
    assert jax.random.normal(restored["key"]) == jax.random.normal(key)


@settings(deadline=None)
@given(
    hnp.arrays(
        st.sampled_from([np.float32, np.float64, np.int64, np.uint8, np.bool_]),
        hnp.array_shapes(min_dims=0, min_side=0),
    )
)
def test_any_array_survives_bit_for_bit(array: np.ndarray) -> None:
    restored = state_from_bytes(state_to_bytes([array]), [np.zeros_like(array)])[0]
    assert restored.dtype == array.dtype
    assert restored.tobytes() == array.tobytes()


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ({"a": np.zeros(3)}, r"a is float64\[2\], expected float64\[3\]"),
        ({"a": np.zeros(2, np.float32)}, r"expected float32\[2\]"),
        ({"a": np.zeros(2), "b": np.zeros(1)}, "b is not in it"),
        ({}, "a is unknown"),
    ],
)
def test_another_template_is_refused(template: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        state_from_bytes(state_to_bytes({"a": np.zeros(2)}), template)


def test_a_function_is_not_data() -> None:
    with pytest.raises(TypeError, match="f is a builtin_function_or_method"):
        state_to_bytes({"f": len})


def test_other_bytes_are_refused() -> None:
    with pytest.raises(UsageError, match="not a safetensors file"):
        state_from_bytes(b"something else", {})


def test_an_array_that_an_earlier_version_did_not_know_stays_fresh() -> None:
    class Grown(eqx.Module):
        added: ClassVar[tuple[str, ...]] = ("inner/later",)
        inner: dict[str, np.ndarray]

    earlier = {"inner": {"first": np.arange(3)}}
    fresh = Grown({"first": np.zeros(3, int), "later": np.full(2, 7.0)})
    found = state_from_bytes(state_to_bytes(earlier), fresh)
    np.testing.assert_array_equal(found.inner["first"], [0, 1, 2])
    np.testing.assert_array_equal(found.inner["later"], [7.0, 7.0])
    # What is written today comes back, and anything else is still missed.
    written = Grown({"first": np.arange(3), "later": np.zeros(2)})
    same = state_from_bytes(state_to_bytes(written), fresh)
    np.testing.assert_array_equal(same.inner["later"], [0.0, 0.0])
    with pytest.raises(UsageError, match="inner/first is not in it"):
        state_from_bytes(state_to_bytes({"inner": {}}), fresh)
