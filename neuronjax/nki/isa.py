"""`nki.isa`: instructions of the engines. `NOT_BUILT` names those that only say so on call."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any, NoReturn

from neuronjax.errors import UnsupportedProgramError
from neuronjax.machine.specs import Engine
from neuronjax.nki.trace import Tensor, current
from neuronjax.program import dma, vector_engine
from neuronjax.program.operand import Immediate
from neuronjax.program.operators import AluOp


class engine(enum.Enum):
    """Engines by their public names."""

    unknown = None
    vector = Engine.VECTOR
    scalar = Engine.SCALAR
    gpsimd = Engine.GPSIMD


def _default(choice: engine) -> Engine:
    return choice.value or Engine.VECTOR


def dma_copy(dst: Tensor, src: Tensor) -> None:
    """dst = src, between HBM and SBUF; further keywords of NKI are not built yet."""
    current().add(dma.DmaCopy(dst=dst.access(), src=src.access()))


def tensor_copy(
    dst: Tensor, src: Tensor, engine: engine = engine.unknown, name: str | None = None
) -> None:
    """dst = src, on chip."""
    current().add(
        vector_engine.TensorCopy(dst=dst.access(), src=src.access(), engine=_default(engine))
    )


def tensor_tensor(
    dst: Tensor,
    data1: Tensor,
    data2: Tensor,
    op: AluOp,
    engine: engine = engine.unknown,
    name: str | None = None,
) -> None:
    """dst = data1 op data2, element by element."""
    current().add(
        vector_engine.TensorTensor(
            dst=dst.access(),
            data1=data1.access(),
            data2=data2.access(),
            op=op,
            engine=_default(engine),
        )
    )


def memset(
    dst: Tensor, value: float, engine: engine = engine.unknown, name: str | None = None
) -> None:
    """dst = value."""
    current().add(
        vector_engine.Memset(dst=dst.access(), value=Immediate(value), engine=_default(engine))
    )


NOT_BUILT = tuple(
    """
    nc_matmul nc_matmul_mx nc_transpose activation activation_reduce activate2 exponential
    reciprocal tensor_reduce tensor_partition_reduce tensor_tensor_scan scalar_tensor_tensor
    tensor_scalar tensor_scalar_reduce tensor_scalar_cumulative tensor_copy_predicated select_reduce
    range_select affine_select iota dropout bn_stats bn_aggr local_gather nc_n_gather
    nonzero_with_count topk max8 nc_find_index8 nc_match_replace8 nc_stream_shuffle sequence_bounds
    quantize_mx dma_transpose dma_compute register_alloc register_load register_move register_store
    core_barrier sendrecv rng rand2 rand_set_state rand_get_state set_rng_seed
    """.split()  # noqa: SIM905
)
"""Instructions that raise ``UnsupportedProgramError`` on call."""


def __getattr__(name: str) -> Callable[..., NoReturn]:
    if name not in NOT_BUILT:
        raise AttributeError(f"nki.isa has no {name!r}.")

    def missing(*_: Any, **__: Any) -> NoReturn:
        raise UnsupportedProgramError(f"{current().line()}: nki.isa.{name} is not built yet.")

    return missing
