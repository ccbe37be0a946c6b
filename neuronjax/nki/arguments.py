"""Arguments of `nki.isa` functions that become several fields of an instruction, or others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from neuronjax.errors import KernelError, UnsupportedProgramError, quoted
from neuronjax.machine.chips import CHIPS
from neuronjax.machine.specs import Engine
from neuronjax.nki import constants
from neuronjax.nki.indices import walk
from neuronjax.nki.tensor import Tensor, check_integers
from neuronjax.nki.tracing import Trace
from neuronjax.program.operand import Dim, Kind
from neuronjax.program.operators import BITVECTOR, AluOp, DescriptorMode

Arguments = dict[str, Any]


_LOADS, _OTHERS = {"engine": Engine.SYNC, "queue": 0}, {"engine": Engine.GPSIMD, "queue": 1}
"""Who starts transfers, and on which queue, where that is left to the compiler. An engine starts
its transfers in order, and a queue serves them in order: what waits for results holds up no loads.
"""


def copy(trace: Trace, arguments: Arguments) -> Arguments:
    """The arguments of `dma_copy`, with who makes its descriptors, and who starts it."""
    mode, chosen = _mode(trace, arguments.pop("dge_mode")), arguments.pop("engine")
    _check_starter(trace, mode, chosen)
    if mode is constants.dge_mode.unknown:
        mode = _chosen(trace, arguments)
    queue = _queue(arguments)
    if mode is constants.dge_mode.swdge:
        queue = queue | {"engine": Engine.GPSIMD}
    elif mode is constants.dge_mode.hwdge:
        queue = queue | {"engine": chosen.value or Engine.SYNC}
    return {**arguments, **queue, "descriptors": DescriptorMode(mode.name)}


def _chosen(trace: Trace, arguments: Arguments) -> constants.dge_mode:
    """The compiler's choice: addresses from registers need descriptors that are made when the
    program runs, by hardware where the core has it."""
    if not any(getattr(value, "dynamic", None) for value in arguments.values()):
        return constants.dge_mode.none
    has_hardware = CHIPS[trace.chip].core.version >= constants.nc_version.gen3
    return constants.dge_mode.hwdge if has_hardware else constants.dge_mode.swdge


def _mode(trace: Trace, mode: Any) -> constants.dge_mode:
    if mode not in list(constants.dge_mode):
        names = ", ".join(f"nisa.dge_mode.{known.name}" for known in constants.dge_mode)
        raise UnsupportedProgramError(
            f"{trace.line()}: dge_mode={quoted(mode)} does not exist; pass one of {names}."
        )
    return constants.dge_mode(mode)


def _queue(arguments: Arguments) -> Arguments:
    src, dst = (arguments[name].storage.on_chip for name in ("src", "dst"))
    return _LOADS if dst and not src else _OTHERS


def _check_starter(trace: Trace, mode: constants.dge_mode, chosen: constants.engine) -> None:
    """Raises ``UnsupportedProgramError`` for an engine that cannot be chosen."""
    allowed = constants.engine.sync, constants.engine.scalar
    if chosen is constants.engine.unknown:
        return
    if mode is not constants.dge_mode.hwdge or chosen not in allowed:
        raise UnsupportedProgramError(
            f"{trace.line()}: dma_copy with dge_mode={mode.name} cannot be started by "
            f"engine={chosen.name}; engine says which sequencer makes descriptors by hardware: "
            "give dge_mode=hwdge and engine sync or scalar, or leave engine out."
        )


def gather(trace: Trace, arguments: Arguments) -> Arguments:
    """The arguments of `dma_copy` from rows that a tile names."""
    return _indexed(_by_software(trace, arguments), arguments.pop("src"))


def scatter(trace: Trace, arguments: Arguments) -> Arguments:
    """The arguments of `dma_copy` to rows that a tile names."""
    return _indexed(_by_software(trace, arguments), arguments.pop("dst"))


def _by_software(trace: Trace, arguments: Arguments) -> Arguments:
    """Rows that a tile names are for GpSimd alone: it makes the descriptors."""
    _check_starter(trace, constants.dge_mode.swdge, arguments.pop("engine"))
    mode = _mode(trace, arguments.pop("dge_mode"))
    if mode not in (constants.dge_mode.unknown, constants.dge_mode.swdge):
        raise UnsupportedProgramError(
            f"{trace.line()}: dma_copy with vector_offset takes no dge_mode={mode.name}, as GpSimd "
            "makes its descriptors; pass nisa.dge_mode.swdge, or leave it out."
        )
    return arguments


def _indexed(arguments: Arguments, rows: Tensor) -> Arguments:
    index = rows.index
    if index is not None and index.dtype.name == "int32":  # below 0 is out of bounds
        index = index.view("uint32")
    return {**arguments, "table": rows.table(), "index": index}


def matmul(trace: Trace, arguments: Arguments) -> Arguments:
    """The arguments of `nc_matmul` and `nc_matmul_mx`: without `accumulate`, the first product of a
    tile begins its sum, which in a loop over a register is another one in the first iteration."""
    accumulate, destination = arguments.pop("accumulate"), arguments["dst"].access()
    if accumulate is None:
        accumulate = destination in trace.accumulated
        if not accumulate and trace.is_older_than_loop(destination.buffer):
            raise UnsupportedProgramError(
                f"{trace.line()}: the first product of a tile that is older than the loop over a "
                "register; say accumulate=True or False, or make the tile in the loop."
            )
    trace.accumulated.add(destination)
    tile = {key: arguments.pop(key) or None for key in ("tile_position", "tile_size")}
    return {**arguments, **tile, "dst": destination, "start": not accumulate}


def register_load(trace: Trace, arguments: Arguments) -> Arguments:
    """The arguments of `register_load`, whose source has integers."""
    check_integers(arguments["src"], "src of register_load")
    return arguments


def transpose(trace: Trace, arguments: Arguments) -> Arguments:
    """The arguments of `nc_transpose`, by the array or by Vector."""
    chosen = arguments.pop("engine")
    if chosen not in (constants.engine.unknown, constants.engine.tensor, constants.engine.vector):
        raise UnsupportedProgramError(
            f"{trace.line()}: nc_transpose cannot run on engine {chosen.name}; leave engine out, "
            "or choose tensor or vector."
        )
    return arguments


def tensor_tensor(trace: Trace, arguments: Arguments) -> Arguments:
    """The arguments of `tensor_tensor`: GpSimd has the power, and the exact arithmetic of 32-bit
    integers, which it is left if no tile lies in PSUM, that it cannot reach (NKI ISA,
    tensor_tensor)."""
    if arguments["engine"] is not constants.engine.unknown:
        return arguments
    tiles = [arguments[name] for name in ("dst", "data1", "data2")]
    op = getattr(arguments["op"], "name", None)
    is_exact = op not in _BIT_OPERATORS and all(
        tile.dtype.name in ("int32", "uint32") and tile.buffer is constants.MemoryRegion.sbuf
        for tile in tiles
    )
    if is_exact or op == AluOp.POWER.value:
        return {**arguments, "engine": constants.engine.gpsimd}
    return arguments


_BIT_OPERATORS = frozenset(op.value for op in BITVECTOR)


def reduce(trace: Trace, arguments: Arguments) -> Arguments:
    """The arguments of `tensor_reduce`, whose `axes` counts the last dimensions."""
    arguments.pop("keepdims")  # the shape of dst says it
    axis, rank = arguments.pop("axis"), len(arguments["data"].shape)
    return {**arguments, "axes": last_axes(trace, axis, rank)}


def last_axes(trace: Trace, axis: int | Sequence[int], rank: int) -> int:
    """How many of the last dimensions `axis` names; ``UnsupportedProgramError`` for others."""
    given = axis if isinstance(axis, list | tuple) else (axis,)
    is_known = all(isinstance(a, int) and -rank <= a < rank for a in given)
    axes = sorted(a % rank for a in given) if is_known else []
    if not axes or axes != list(range(axes[0], rank)) or axes[0] == 0:
        raise UnsupportedProgramError(
            f"{trace.line()}: cannot reduce axis={quoted(axis)} of a tensor with {rank} "
            "dimensions; reduce the last dimensions, but never dimension 0 (partitions)."
        )
    return len(axes)


def barrier(trace: Trace, arguments: Arguments) -> Arguments:
    """The arguments of `core_barrier`: what it waits for lies where both cores see it."""
    data = arguments["data"]
    if data.storage.kind is Kind.SCRATCH and not data.storage.on_chip:
        raise KernelError(
            f"{trace.line()}: core_barrier orders what cores do with data, and {data!r} is memory "
            "of this core alone; give it the tensor of nl.shared_hbm that they share."
        )
    return arguments


def pattern(trace: Trace, arguments: Arguments) -> Arguments:
    """The arguments of `iota` and `affine_select`, with [step, count] of every dimension."""
    dims = [Dim(step, count) for step, count in zip(*walk(arguments["pattern"]), strict=True)]
    return {**arguments, "pattern": tuple(dims)}


_TRANSPOSED_AXES = {2: (1, 0), 3: (2, 1, 0), 4: (3, 1, 2, 0)}
"""Dimensions -> the permutation of `dma_transpose` (NKI ISA, dma_transpose)."""


def dma_transpose(trace: Trace, arguments: Arguments) -> Arguments:
    """The arguments of `dma_transpose`, whose number of dimensions says the permutation."""
    arguments.pop("oob_mode")  # of indirect transposes
    mode = _transposing(trace, arguments, _DIRECT, "without vector_offset")
    if mode is constants.dge_mode.hwdge:
        _check_by_hardware(trace, arguments["src"])
        arguments["descriptors"] = DescriptorMode(mode.name)
    return {**arguments, "axes": _transposed_axes(trace, arguments)}


_DIRECT = (constants.dge_mode.none, constants.dge_mode.hwdge)
"""Modes of transposes whose addresses are known (NKI deep dives, "How .ap() affects DGE mode")."""


def _transposing(
    trace: Trace, arguments: Arguments, allowed: Sequence[constants.dge_mode], what: str
) -> constants.dge_mode:
    """Takes the mode of a transpose from its arguments."""
    mode = _mode(trace, arguments.pop("dge_mode"))
    if mode not in (constants.dge_mode.unknown, *allowed):
        names = " or ".join(f"nisa.dge_mode.{mode.name}" for mode in allowed)
        raise UnsupportedProgramError(
            f"{trace.line()}: dma_transpose {what} takes no dge_mode={mode.name}; pass {names}, "
            "or leave it out."
        )
    return mode


def _check_by_hardware(trace: Trace, src: Tensor) -> None:
    """Raises ``UnsupportedProgramError`` for what hardware makes no descriptors of (NKI ISA,
    dma_transpose: direct transpose)."""
    rows = src.shape[0]
    is_flat = len(src.shape) == 2
    takes_rows = rows == 16 if is_flat else rows in _ROWS and rows * src.shape[-2] % 16 == 0
    if not takes_rows or src.shape[-1] > 128 or src.dtype.storage_bits != 16:
        raise UnsupportedProgramError(
            f"{trace.line()}: dma_transpose with dge_mode=hwdge takes 16 rows (of 3 and 4 "
            "dimensions 1, 2, 4, 8 or 16, and sixteens of them with those of the last but one) of "
            f"at most 128 elements of 2 bytes, and src is {src.dtype.name}{list(src.shape)}; leave "
            "dge_mode out, or transpose 16 rows at a time."
        )


_ROWS = (1, 2, 4, 8, 16)


def gather_transpose(trace: Trace, arguments: Arguments) -> Arguments:
    """The arguments of `dma_transpose` from rows that a tile names."""
    _transposing(trace, arguments, (constants.dge_mode.swdge,), "with vector_offset")
    axes = _transposed_axes(trace, arguments)
    return {**_indexed(arguments, arguments.pop("src")), "axes": axes}


def _transposed_axes(trace: Trace, arguments: Arguments) -> tuple[int, ...]:
    rank = len(arguments["src"].shape)
    axes = arguments.pop("axes") or _TRANSPOSED_AXES.get(rank)
    if axes is None:
        raise UnsupportedProgramError(
            f"{trace.line()}: dma_transpose cannot take {rank} dimensions; pass 2, 3 or 4."
        )
    return tuple(axes)


def dma_compute(trace: Trace, arguments: Arguments) -> Arguments:
    """The arguments of `dma_compute` without indices."""
    arguments.pop("oob_mode")
    return _unscaled(trace, arguments)


def _unscaled(trace: Trace, arguments: Arguments) -> Arguments:
    srcs, scales = arguments["srcs"], arguments.pop("scales")
    if not isinstance(srcs, list | tuple) or not all(isinstance(src, Tensor) for src in srcs):
        raise UnsupportedProgramError(
            f"{trace.line()}: nki.isa.dma_compute takes no srcs={quoted(srcs)}; pass a list of "
            "tensors."
        )
    if scales is not None and (
        not isinstance(scales, list | tuple) or any(scale != 1 for scale in scales)
    ):
        raise UnsupportedProgramError(
            f"{trace.line()}: scales of dma_compute must be 1.0; scale with tensor_scalar."
        )
    if not arguments.pop("unique_indices"):
        raise UnsupportedProgramError(
            f"{trace.line()}: dma_compute takes no unique_indices=False; add what has the same "
            "index before, or in several instructions."
        )
    return arguments


def gather_sum(trace: Trace, arguments: Arguments) -> Arguments:
    """The arguments of `dma_compute` that adds rows which a tile names to `dst`."""
    return _indexed(arguments, _added(trace, arguments, arguments["dst"]))


def scatter_sum(trace: Trace, arguments: Arguments) -> Arguments:
    """The arguments of `dma_compute` that adds to rows which a tile names."""
    rows = arguments.pop("dst")
    arguments["src"] = _added(trace, arguments, rows)
    return _indexed(arguments, rows)


def _added(trace: Trace, arguments: Arguments, dst: Tensor) -> Tensor:
    """The one of two sources that is not `dst`, to which it is added; `arguments` say so from then
    on."""
    srcs, op = _unscaled(trace, arguments).pop("srcs"), arguments.pop("reduce_op")
    rest = [src for src in srcs if src != dst]
    if len(srcs) != 2 or len(rest) != 1 or getattr(op, "name", None) != AluOp.ADD.value:
        raise UnsupportedProgramError(
            f"{trace.line()}: dma_compute with vector_offset adds one tensor to dst: pass "
            "reduce_op=nl.add and two sources, of which one is dst itself."
        )
    arguments["accumulate"] = True
    return rest[0]
