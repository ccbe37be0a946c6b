"""`neuronxcc.nki.isa`: instructions of NKI 0.x, which return tiles, as those of the present one.

A row of `SIGNATURES` has the parameters; `_SHAPES` says what shape a result has.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from neuronjax.errors import UnsupportedProgramError, quoted
from neuronjax.nki import isa, tiles
from neuronjax.nki.arguments import last_axes
from neuronjax.nki.constants import OPERATORS, MemoryRegion
from neuronjax.nki.dtypes import DType, element_type
from neuronjax.nki.elementwise import broadcast_operands
from neuronjax.nki.isa import dge_mode as dge_mode
from neuronjax.nki.isa import engine as engine
from neuronjax.nki.isa import get_nc_version as get_nc_version
from neuronjax.nki.isa import nc_version as nc_version
from neuronjax.nki.isa import oob_mode as oob_mode
from neuronjax.nki.isa import reduce_cmd as reduce_cmd
from neuronjax.nki.legacy.index import Index, Mask, Predicate
from neuronjax.nki.legacy.lives import lives
from neuronjax.nki.legacy.operands import Masked, apply_masked, reduce_any
from neuronjax.nki.legacy.products import product
from neuronjax.nki.legacy.tile import Tile
from neuronjax.nki.refusal import misfit, unknown
from neuronjax.nki.signatures import SIGNATURES as PRESENT
from neuronjax.nki.tensor import Tensor
from neuronjax.nki.tracing import current

unknown_engine = engine.unknown
tensor_engine, vector_engine = engine.tensor, engine.vector
scalar_engine, gpsimd_engine = engine.scalar, engine.gpsimd

Shape = tuple[int, ...]
Arguments = dict[str, Any]


def _same(arguments: Arguments) -> Shape:
    return _source(arguments).shape


def _source(arguments: Arguments) -> Tensor:
    names = ("data", "data1", "data0", "src", "on_true_tile", "src_buffer", "predicate", "moving")
    return next(arguments[name] for name in names if isinstance(arguments.get(name), Tensor))


def _reduced(arguments: Arguments) -> Shape:
    shape = arguments["data"].shape
    axes = last_axes(current(), arguments["axis"], len(shape))
    kept = len(shape) - axes
    return (*shape[:kept], *([1] * axes if arguments.get("keepdims") or kept == 1 else ()))


_SHAPES: Mapping[str, Callable[[Arguments], Shape]] = {
    "tensor_reduce": _reduced,
    "nc_transpose": lambda given: given["data"].shape[::-1],
    "tensor_partition_reduce": lambda given: (1, *given["data"].shape[1:]),
    "bn_stats": lambda given: (given["data"].shape[0], 6),
    "bn_aggr": lambda given: (given["data"].shape[0], 2),
    "max8": lambda given: (given["src"].shape[0], 8),
    "nc_find_index8": lambda given: (given["data"].shape[0], 8),
    "local_gather": lambda given: (
        given["src_buffer"].shape[0],
        given["index"].shape[1] * given.get("num_elem_per_idx", 1),
    ),
}
"""Instruction -> the shape of its result, where that is not its operand's."""

SIGNATURES: Mapping[str, str] = {
    "nc_matmul": "stationary, moving, is_stationary_onezero=False, is_moving_onezero=False, "
    "is_transpose=False, tile_position=(), tile_size=(), mask=None",
    "nc_transpose": "data, mask=None, dtype=None, engine=None",
    "activation": "op, data, bias=None, scale=1.0, reduce_op=None, reduce_res=None, "
    "reduce_cmd=None, mask=None, dtype=None",
    "activation_reduce": "op, data, reduce_op, reduce_res, bias=None, scale=1.0, mask=None, "
    "dtype=None",
    "tensor_reduce": "op, data, axis, mask=None, dtype=None, negate=False, keepdims=False",
    "tensor_partition_reduce": "op, data, mask=None, dtype=None",
    "tensor_tensor": "data1, data2, op, dtype=None, mask=None, engine=None",
    "tensor_tensor_scan": "data0, data1, initial, op0, op1, reverse0=False, reverse1=False, "
    "dtype=None, mask=None",
    "scalar_tensor_tensor": "data, op0, operand0, op1, operand1, reverse0=False, reverse1=False, "
    "dtype=None, mask=None",
    "tensor_scalar": "data, op0, operand0, reverse0=False, op1=None, operand1=None, "
    "reverse1=False, dtype=None, mask=None, engine=None",
    "tensor_scalar_reduce": "data, op0, operand0, reduce_op, reduce_res, reverse0=False, "
    "dtype=None, mask=None",
    "tensor_copy": "src, mask=None, dtype=None, engine=None",
    "tensor_copy_predicated": "src, dst, predicate, mask=None, dtype=None, reverse_pred=False",
    "reciprocal": "data, dtype=None, mask=None",
    "dropout": "data, prob, mask=None, dtype=None",
    "bn_stats": "data, mask=None, dtype=None",
    "bn_aggr": "data, mask=None, dtype=None",
    "max8": "src, mask=None, dtype=None",
    "nc_find_index8": "data, vals, mask=None, dtype=uint32",
    "nc_match_replace8": "data, vals, imm, dst_idx=None, mask=None, dtype=None",
    "nc_stream_shuffle": "src, dst, shuffle_mask, dtype=None, mask=None",
    "local_gather": "src_buffer, index, num_elem_per_idx=1, num_valid_indices=None, mask=None",
    "dma_copy": "dst, src, mask=None, oob_mode=None, dge_mode=None",
    "select_reduce": "dst, predicate, on_true, on_false, reduce_res=None, reduce_cmd=None, "
    "reduce_op=None, reverse_pred=False, mask=None, dtype=None",
}
"""Name -> the parameters of NKI 0.x, in order."""


def _parameter(text: str) -> inspect.Parameter:
    name, given, default = text.strip().partition("=")
    values = {"None": None, "False": False, "()": (), "1.0": 1.0, "1": 1, "uint32": "uint32"}
    value = values[default] if given else inspect.Parameter.empty
    return inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=value)


_signatures = {
    name: inspect.Signature([_parameter(text) for text in _entries.split(", ")])
    for name, _entries in SIGNATURES.items()
}


@functools.cache
def _function(name: str) -> Callable[..., Masked | None]:
    signature = _signatures[name]
    takes_dst = "dst" in signature.parameters
    known = set(PRESENT[name].replace("=", ", ").split(", "))

    def call(*arguments: object, **keywords: object) -> Masked | None:
        lives().arrive()
        wrong = misfit(signature, arguments, keywords)
        if wrong is not None:
            raise UnsupportedProgramError(
                f"{current().line()}: neuronxcc.nki.isa.{name}({SIGNATURES[name]}): {wrong}"
            )
        bound = signature.bind(*arguments, **keywords)
        bound.apply_defaults()
        given = dict(bound.arguments)
        mask, dtype = given.pop("mask", None), given.pop("dtype", None)
        is_given = {key: value for key, value in given.items() if value is not None}
        if name == "nc_matmul":
            return _product(is_given, mask)
        write: Callable[..., Tensor] = functools.partial(_written, name, dtype, known)
        if name == "tensor_reduce":
            write = functools.partial(_reduced_by, write)
        result = apply_masked(write, mask=mask, **is_given)
        if is_given.get("engine", unknown_engine) is not unknown_engine:
            lives().named.add(len(current().instructions) - 1)
        return given["dst"] if takes_dst else result

    call.__name__ = call.__qualname__ = name
    call.__doc__ = getattr(isa, name).__doc__
    call.__signature__ = signature  # type: ignore[attr-defined]
    return call


def _reduced_by(write: Callable[..., Tensor], data: Tensor, axis: Any, **given: Any) -> Tensor:
    return reduce_any(lambda x, axis, **rest: write(data=x, axis=axis, **rest), data, axis, **given)


def _written(name: str, dtype: DType, known: set[str], **given: Any) -> Tensor:
    """The result of an instruction of the present dialect, which writes to a tile of its own."""
    instruction = getattr(isa, name)
    if "dst" in given:
        instruction(**{key: value for key, value in given.items() if key in known})
        return given["dst"]
    if name == "tensor_tensor":
        given["data1"], given["data2"] = broadcast_operands(given["data1"], given["data2"])
    shape = _SHAPES.get(name, _same)(given)
    is_of_array = name == "nc_transpose" and given.get("engine") is not engine.vector
    source = _source(given)
    result = tiles.ndarray(
        shape,
        dtype or source.dtype,
        MemoryRegion.psum if is_of_array else MemoryRegion.sbuf,
    )
    instruction(result, **{key: value for key, value in given.items() if key in known})
    return result


def _product(given: Arguments, mask: Predicate) -> Masked | None:
    stationary, moving = given.pop("stationary"), given.pop("moving")

    def multiply(x: Tensor, y: Tensor) -> Tensor:
        kind = y.dtype if given.get("is_transpose") else "float32"
        columns = 1
        for size in x.shape[1:]:
            columns *= size
        result = tiles.ndarray((columns, *y.shape[1:]), kind, MemoryRegion.psum)
        isa.nc_matmul(result, x, y, **given)
        return result

    return product(multiply, stationary, moving, mask)


def memset(
    shape: Sequence[int],
    value: float,
    dtype: DType,
    *,
    mask: Predicate = None,
    engine: engine | None = None,
) -> Tile:
    """A tile of one value."""
    lives().arrive()
    sizes = tuple(map(int, shape))
    result = tiles.ndarray(sizes if len(sizes) > 1 else (*sizes, 1), dtype)
    chosen: dict[str, Any] = {} if engine is None else {"engine": engine}
    isa.memset(result, value, **chosen)
    return Tile.of(result)


def iota(expr: Index, dtype: DType, *, mask: Predicate = None) -> Tile:
    """A tile with the values of an index expression."""
    lives().arrive()
    if not isinstance(expr, Index):
        raise UnsupportedProgramError(
            f"{current().line()}: nisa.iota takes no {quoted(expr)}; pass an expression of "
            "nl.arange."
        )
    result = tiles.ndarray(expr.shape, element_type(dtype))
    pattern = [list(pair) for pair in zip(expr.factors[1:], expr.shape[1:], strict=True)]
    isa.iota(result, pattern, offset=expr.base, channel_multiplier=expr.factors[0])
    return Tile.of(result)


def affine_select(
    pred: Mask,
    on_true_tile: Masked,
    on_false_value: float,
    *,
    mask: Predicate = None,
    dtype: DType = None,
) -> Masked:
    """The elements of a tile where a predicate about its places holds, else a number."""
    lives().arrive()
    conditions: tuple[Index, ...] = getattr(pred, "conditions", ())
    if len(conditions) != 1:
        raise UnsupportedProgramError(
            f"{current().line()}: nisa.affine_select takes no pred={quoted(pred)}; pass one "
            "comparison of expressions of nl.arange."
        )
    condition = conditions[0]

    def select(tile: Tensor) -> Tensor:
        if tile.buffer is MemoryRegion.psum:
            tile = tiles.copy(tile)
        result, sizes = tiles.ndarray(tile.shape, dtype or tile.dtype), tile.shape[1:]
        pattern = [
            [factor, size] for factor, size in zip(condition.factors[1:], sizes, strict=True)
        ]
        isa.affine_select(
            result, pattern, condition.factors[0], tile, on_false_value,
            cmp_op=OPERATORS["greater_equal"], offset=condition.base,
        )  # fmt: skip
        return result

    return apply_masked(select, on_true_tile, mask=mask)


def __getattr__(name: str) -> Any:
    if name in SIGNATURES:
        return _function(name)
    raise unknown("neuronxcc.nki.isa", name, __dir__(), _successor(name))


_DYNAMIC = "nki.isa.tensor_copy of the present dialect, with x.ap(…, scalar_offset=register)"


def _successor(name: str) -> str | None:
    """What to write instead of a function that takes registers, or is of the present dialect."""
    if name in ("tensor_copy_dynamic_src", "tensor_copy_dynamic_dst"):
        return _DYNAMIC
    return f"nki.isa.{name} of the present dialect (import nki.isa)" if name in dir(isa) else None


def __dir__() -> list[str]:
    public = [name for name in globals() if not name.startswith("_")]
    return [*public, *SIGNATURES]
