"""A pytree of arrays as the bytes of one safetensors file, and back.

Only numbers are stored, under the path that leads to them in the tree. The structure,
and with it everything that could run code, always comes from a template: a freshly made
state of the same configuration.
"""

from typing import Any, TypeVar

import jax
import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load, save

from pombu.errors import UsageError

Tree = TypeVar("Tree")
Array = npt.NDArray[Any]


def to_bytes(state: Any) -> bytes:
    """The arrays of a pytree as a safetensors file."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(state)
    arrays = {_name(path): _plain(_name(path), leaf) for path, leaf in leaves}
    if len(arrays) != len(leaves):
        raise TypeError("two leaves of the state have the same path")
    return save(arrays)


def from_bytes(data: bytes, template: Tree) -> Tree:
    """The pytree that `to_bytes` was given, in the shape of `template`.

    Raises:
        UsageError: The arrays do not fit the template.
    """
    try:
        arrays = load(data)
    except SafetensorError as error:
        raise UsageError(f"not a safetensors file: {error}") from None
    leaves, structure = jax.tree_util.tree_flatten_with_path(template)
    names = {_name(path) for path, _ in leaves}
    if odd := sorted(names ^ set(arrays)):
        where = "not in it" if odd[0] in names else "unknown"
        raise UsageError(f"{odd[0]} is {where}")
    restored = [_like(_name(path), leaf, arrays[_name(path)]) for path, leaf in leaves]
    tree: Tree = jax.tree_util.tree_unflatten(structure, restored)
    return tree


def _name(path: tuple[Any, ...]) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")


def _plain(name: str, leaf: Any) -> Array:
    """A leaf as an array of a type that the file format knows."""
    if _is_key(leaf):
        leaf = jax.random.key_data(leaf)
    if not isinstance(leaf, jax.Array | np.ndarray | np.generic | bool | int | float):
        raise TypeError(f"{name} is a {type(leaf).__name__}, not an array")
    array = np.asarray(leaf, order="C")
    return array.view(_stored_type(array.dtype))


def _like(name: str, leaf: Any, array: Array) -> Any:
    """The stored array as the same kind of thing as the template's leaf."""
    expected = _plain(name, leaf)
    if (array.shape, array.dtype) != (expected.shape, expected.dtype):
        raise UsageError(
            f"{name} is {array.dtype}{list(array.shape)}, "
            f"expected {expected.dtype}{list(expected.shape)}"
        )
    if _is_key(leaf):
        implementation = jax.random.key_impl(leaf)
        return jax.random.wrap_key_data(jax.numpy.array(array), impl=implementation)
    if isinstance(leaf, jax.Array):
        return jax.numpy.array(array.view(leaf.dtype))
    if isinstance(leaf, np.ndarray):
        return array.view(leaf.dtype).copy()
    return type(leaf)(array.item())


def _is_key(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and jax.numpy.issubdtype(
        leaf.dtype, jax.dtypes.prng_key
    )


def _stored_type(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Types that NumPy does not know, such as bfloat16, are stored by their bits."""
    if dtype.isbuiltin == 1:
        return dtype
    return np.dtype(f"uint{8 * dtype.itemsize}")
