"""Arrays that kernels are called with: of numpy, JAX or torch, and truth values among them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVar

import jax
import numpy as np

from neuronjax.emulate.element_types import numpy_dtype
from neuronjax.errors import KernelError
from neuronjax.nki import dtypes
from neuronjax.nki.tensor import Tensor

Array: TypeAlias = np.ndarray | jax.Array
"""What becomes a tensor. Tracers and shapes of JAX stand for arrays of it."""

A = TypeVar("A", np.ndarray, jax.Array, np.ndarray | jax.Array)
Restore: TypeAlias = Callable[[Array], Any]
"""Makes a tensor of torch, whose types are not needed to import this, of an array."""


def is_array(value: object) -> bool:
    """Whether an argument is an array; scalars of numpy are numbers."""
    return (
        hasattr(value, "dtype")
        and hasattr(value, "shape")
        and not isinstance(value, type | np.generic)
    )


def without_torch(leaves: Sequence[Any]) -> tuple[tuple[Any, ...], Restore | None]:
    """Returns arguments with arrays in the place of tensors of torch, and what makes such tensors
    of results again; None if there were none.

    In a module that torchax traces, tensors hold arrays of JAX, and those of the host beside them
    are constants of the program.

    KernelError: the memory of a tensor is not the host's.
    """
    libraries = [_library(leaf) for leaf in leaves]
    if "torchax" in libraries:
        environment = leaves[libraries.index("torchax")]._env
        convert, restore = environment.t2j_iso, environment.j2t_iso
    elif "torch" in libraries:
        convert, restore = _from_torch, _to_torch
    else:
        return tuple(leaves), None
    pairs = zip(leaves, libraries, strict=True)
    return tuple([convert(leaf) if library else leaf for leaf, library in pairs]), restore


def _library(value: object) -> str:
    """The library of a tensor of torch, ``torch`` or ``torchax``; empty for anything else."""
    name = type(value).__module__.partition(".")[0]
    return name if name in ("torch", "torchax") and is_array(value) else ""


def _from_torch(tensor: Any) -> np.ndarray:
    """A tensor of torch as an array of numpy on the same memory."""
    if tensor.device.type != "cpu":
        raise KernelError(
            f"a tensor of torch on {tensor.device} cannot be an argument; pass tensor.cpu()."
        )
    name = str(tensor.dtype).removeprefix("torch.")
    words = _words(name)
    if words is None:
        return tensor.detach().numpy()
    return tensor.detach().view(words).numpy().view(numpy_dtype(dtypes.element_type(name)))


def _to_torch(array: Array) -> Any:
    """An array as a tensor of torch."""
    torch, values = sys.modules["torch"], np.array(array)
    words = _words(values.dtype.name)
    if words is None:
        return torch.from_numpy(values)
    return torch.from_numpy(values.view(_name(words))).view(getattr(torch, values.dtype.name))


def _words(name: str) -> Any:
    """Integers of the width of a floating-point type that torch has and numpy has not."""
    torch = sys.modules["torch"]
    if name == "bfloat16":
        return torch.int16
    return torch.uint8 if name.startswith("float8") and hasattr(torch, name) else None


def _name(dtype: object) -> str:
    return str(dtype).removeprefix("torch.")


def stored(array: A) -> A:
    """An array as a kernel takes it: in the machine's order of bytes, and truth values as bytes."""
    if isinstance(array, np.ndarray) and not array.dtype.isnative:
        return array.astype(array.dtype.newbyteorder("="))
    if array.dtype != np.bool_:
        return array
    return array.view(np.uint8) if isinstance(array, np.ndarray) else array.astype(np.uint8)


def seen_as(tensor: Tensor, array: A) -> A:
    """What memory of a kernel holds, as the tensor that the kernel returned sees it."""
    dtype = dtypes.stored(tensor.dtype)
    bits = array if dtype == tensor.storage.dtype else array.view(numpy_dtype(dtype))
    values = bits.reshape(tensor.shape)
    return values != 0 if tensor.dtype == dtypes.BOOL else values


def check_values(place: str, array: object) -> None:
    """KernelError: an argument of a run has no values, or some of them do not count."""
    if isinstance(array, jax.ShapeDtypeStruct | jax.core.Tracer):
        raise KernelError(
            f"{place} is a {type(array).__name__}, which has no values; pass an array. Within "
            "jax.jit call the kernel itself; kernel.trace takes shapes."
        )
    if isinstance(array, np.ma.MaskedArray):
        raise KernelError(f"{place} is a masked array; pass array.filled(value).")
