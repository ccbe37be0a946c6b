"""What real releases of the Neuron SDK do wrong, at the lines of a kernel that would meet it.

The emulator computes what is documented. A row of `FAILURES` says where a release does not, by
chip and SDK, with the public issue or the release notes that report it; what is met becomes a note.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

from neuronjax.machine.chips import CHIPS
from neuronjax.nki import constants
from neuronjax.nki.constants import MemoryRegion
from neuronjax.nki.dtypes import element_type
from neuronjax.nki.loop_marks import LoopMarks
from neuronjax.nki.tensor import Tensor
from neuronjax.nki.tracing import Trace, current
from neuronjax.options import Version
from neuronjax.program.element_types import Integer
from neuronjax.program.operators import UNARY, AluOp

P = ParamSpec("P")
R = TypeVar("R")

Arguments = Mapping[str, Any]

LOOP = "a loop over a register"
"""The place of failures that a loop meets, whatever function begins it."""

LAST_EARLIER_SDK: Version = (2, 26)
"""The last SDK whose compiler takes the earlier dialect; the present one begins behind it."""

_SDK = "aws-neuron/aws-neuron-sdk"
_NEWEST_CORE = 1 << 30


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Something that releases do wrong."""

    places: tuple[str, ...]
    """The functions that meet it, such as `nki.isa.dma_copy`, or `LOOP`."""
    what: str
    """What goes wrong and what to do, as the rest of a sentence."""
    source: str
    """Who reports it: a public issue, or a page of release notes."""
    since: Version
    until: Version | None = None
    """The first SDK that is reported to have it, and the first without it; None: none is known."""
    cores: tuple[int, int] = (2, _NEWEST_CORE)
    """The first and the last NeuronCore generation that has it."""
    is_met: Callable[[Arguments], bool] = lambda given: True
    """Whether a call, by its arguments, or a loop, by what `loop_failures` says of it, meets it."""

    def holds_for(self, chip: str, sdk: Version) -> bool:
        """Whether a release has it on a chip."""
        first, last = self.cores
        is_within = self.since <= sdk and (self.until is None or sdk < self.until)
        return is_within and first <= CHIPS[chip].core.version <= last


def _skips_rows(given: Arguments) -> bool:
    return given["src"].index is not None and given["oob_mode"] is constants.oob_mode.skip


def _is_at_register_in_sbuf(given: Arguments) -> bool:
    src = given["src"]
    return src.dynamic is not None and src.buffer is MemoryRegion.sbuf


def _copies_with_bias(given: Arguments) -> bool:
    return getattr(given["op"], "name", None) == "copy" and given["bias"] is not None


def _keeps_reducing(given: Arguments) -> bool:
    return given["reduce_cmd"] is not constants.reduce_cmd.reset_reduce


def _names_engine(given: Arguments) -> bool:
    return given["engine"] is not constants.engine.unknown


def _fills_part(given: Arguments) -> bool:
    indices, elements = given["num_valid_indices"], given["num_elem_per_idx"]
    if indices is None:
        return bool(elements != 1)
    return bool(indices * elements != math.prod(given["dst"].shape[1:]))


def _has_places(given: Arguments) -> bool:
    return bool(given["has_rdispls"])


def _is_broadcast(given: Arguments) -> bool:
    x, y = given["x"], given["y"]
    return isinstance(x, Tensor) and isinstance(y, Tensor) and x.shape != y.shape


def _has_number(given: Arguments) -> bool:
    return not (isinstance(given["x"], Tensor) and isinstance(given["y"], Tensor))


def _loses_bits(given: Arguments) -> bool:
    dtypes = [given["x"].dtype]
    if given["dtype"] is not None:
        dtypes.append(element_type(given["dtype"]))
    return all(isinstance(dtype, Integer) and dtype.storage_bits == 32 for dtype in dtypes)


def _is_in_psum(given: Arguments) -> bool:
    tensor = given.get("value", given.get("x"))
    return isinstance(tensor, Tensor) and tensor.buffer is MemoryRegion.psum


def _is_untransposed(given: Arguments) -> bool:
    return not given["transpose_x"]


def _is_nested(given: Arguments) -> bool:
    return bool(given["is_nested"])


def _is_alone(given: Arguments) -> bool:
    return given["programs"] == 1


def _is_shared(given: Arguments) -> bool:
    return given["programs"] > 1


FAILURES = (
    Failure(
        places=("nki.isa.dma_transpose",),
        what="an index out of bounds among others aborts an indirect dma_transpose with "
        "oob_mode.skip, and programs fail until the device is reset; give valid indices alone",
        source=f"{_SDK}#1390",
        since=(2, 32),
        cores=(3, 4),
        is_met=_skips_rows,
    ),
    Failure(
        places=("nki.isa.dma_transpose",),
        what="an indirect dma_transpose does not look at each index for its bounds; give valid "
        "indices alone",
        source="Neuron Runtime 2.32, bug fixes",
        since=(2, 28),
        until=(2, 32),
        cores=(4, 4),
        is_met=_skips_rows,
    ),
    Failure(
        places=("nki.isa.dma_copy",),
        what="the compiler ends with a segmentation fault where src is a tile at a place that a "
        "register or scalar_offset gives; copy it by tensor_copy, or from HBM",
        source=f"{_SDK}#1373",
        since=(2, 31),
        until=(2, 32),
        cores=(3, 3),
        is_met=_is_at_register_in_sbuf,
    ),
    Failure(
        places=("nki.isa.activation",),
        what="activation leaves out the bias where op is nl.copy; use tensor_scalar with nl.add",
        source=f"{_SDK}#1296",
        since=(2, 28),
        cores=(2, 2),
        is_met=_copies_with_bias,
    ),
    Failure(
        places=("nki.isa.range_select",),
        what="range_select resets its reduction whatever reduce_cmd says; select and reduce apart",
        source="NKI 0.2.0, known issues",
        since=(2, 28),
        until=(2, 29),
        is_met=_keeps_reducing,
    ),
    Failure(
        places=("nki.isa.nc_transpose",),
        what="nc_transpose takes no notice of engine, and chooses by the memory of dst",
        source="NKI 0.4.0, bug fixes",
        since=(2, 27),
        until=(2, 30),
        is_met=_names_engine,
    ),
    Failure(
        places=("nki.isa.local_gather",),
        what="local_gather takes no notice of num_elem_per_idx unless it and num_valid_indices are "
        "given and fill dst",
        source="NKI 0.6.0, known issues",
        since=(2, 32),
        is_met=_fills_part,
    ),
    Failure(
        places=("nki.collectives.all_to_all_v",),
        what="has_rdispls has no effect between chips that a switch connects; place what is "
        "received by copies",
        source="NKI 0.3.0, known issues, and Neuron Runtime 2.32, bug fixes",
        since=(2, 29),
        until=(2, 32),
        cores=(4, 4),
        is_met=_has_places,
    ),
    Failure(
        places=(LOOP,),
        what="the compiler refuses loops over registers with NCC_IXGM002, as the second physical "
        "core has none; give the loop bounds that are known",
        source=f"{_SDK}#1388",
        since=(2, 32),
        cores=(3, 3),
        is_met=_is_alone,
    ),
    Failure(
        places=(LOOP,),
        what="the compiler refuses loops over registers within each other that hand on values "
        "(Could not find register); give the outer one bounds that are known",
        source="NKI 0.4.0, known issues",
        since=(2, 30),
        is_met=_is_nested,
    ),
    Failure(
        places=(LOOP,),
        what="a loop over a register may read or write too early what is used before it; upgrade",
        source="NKI 0.4.0, bug fixes",
        since=(2, 27),
        until=(2, 30),
    ),
    Failure(
        places=(LOOP,),
        what="the number of a loop over a register may never advance; upgrade",
        source="NKI 0.2.0, bug fixes",
        since=(2, 27),
        until=(2, 28),
    ),
    Failure(
        places=(LOOP,),
        what="physical cores must take the same way, or they wait for ever or compute wrong; let "
        "each run the loop as often as the other",
        source="NKI 0.3.0, known issues",
        since=(2, 29),
        is_met=_is_shared,
    ),
    Failure(
        places=tuple(f"nki.language.{op.value}" for op in AluOp if op not in UNARY),
        what="functions of two tiles broadcast nothing; give both one shape, or use "
        "nisa.tensor_scalar with a column",
        source="NKI 0.3.0, known issues",
        since=(2, 29),
        is_met=_is_broadcast,
    ),
    Failure(
        places=("nki.language.divide",),
        what="nl.divide is not compiled; multiply by nl.reciprocal",
        source="NKI 0.3.0, known issues",
        since=(2, 29),
    ),
    Failure(
        places=("nki.language.power",),
        what="nl.power takes no number; give two tiles",
        source="NKI 0.3.0, known issues",
        since=(2, 29),
        is_met=_has_number,
    ),
    Failure(
        places=("nki.language.matmul",),
        what="nl.matmul is not compiled without transpose_x=True; hand on the transpose",
        source="NKI 0.3.0, known issues",
        since=(2, 29),
        is_met=_is_untransposed,
    ),
    Failure(
        places=("nki.language.copy",),
        what="nl.copy converts integers to float32 and back, which is exact up to 2^23; use "
        "nisa.tensor_copy",
        source="NKI 0.3.0, known issues",
        since=(2, 29),
        is_met=_loses_bits,
    ),
    Failure(
        places=("nki.language.copy",),
        what="nl.copy takes no tile of PSUM; use nisa.tensor_copy",
        source="NKI 0.3.0, known issues",
        since=(2, 29),
        is_met=_is_in_psum,
    ),
    Failure(
        places=("nki.language.store",),
        what="nl.store takes no tile of PSUM; copy it to SBUF by nisa.tensor_copy",
        source="NKI 0.3.0, known issues",
        since=(2, 29),
        until=(2, 30),
        is_met=_is_in_psum,
    ),
    Failure(
        places=("nki.language.rand",),
        what="nl.random_seed may have no effect on nl.rand, which another engine computes; use "
        "nisa.set_rng_seed and nisa.rng",
        source="NKI 0.3.0, known issues",
        since=(2, 29),
        cores=(2, 3),
    ),
)

_BY_PLACE: Mapping[str, tuple[Failure, ...]] = {
    place: tuple(failure for failure in FAILURES if place in failure.places)
    for place in dict.fromkeys(place for failure in FAILURES for place in failure.places)
}


def _texts(trace: Trace, place: str, line: str, given: Arguments) -> Iterator[str]:
    """The notes of a call or a loop at a line of the kernel."""
    for failure in _BY_PLACE.get(place, ()):
        if failure.holds_for(trace.chip, trace.sdk) and failure.is_met(given):
            release = ".".join(map(str, trace.sdk))
            yield f"{line}: with Neuron SDK {release}, {failure.what} ({failure.source})"


def note_call(trace: Trace, function: str, given: Arguments) -> None:
    """Notes what the emulated release does wrong with a call, by its arguments, default ones
    included."""
    if function in _BY_PLACE:
        trace.remarks.update(dict.fromkeys(_texts(trace, function, trace.line(), given)))


def watched(name: str, function: Callable[P, R]) -> Callable[P, R]:
    """The function, whose calls are noted where the emulated release does them wrong."""
    if name not in _BY_PLACE:
        return function
    parameters = inspect.signature(function)

    @functools.wraps(function)
    def call(*arguments: P.args, **keywords: P.kwargs) -> R:
        result = function(*arguments, **keywords)
        given = parameters.bind(*arguments, **keywords)
        given.apply_defaults()
        note_call(current(), name, given.arguments)
        return result

    return call


def _within(loop: LoopMarks) -> Iterator[LoopMarks]:
    """The loops that a loop has within it, at any depth."""
    for mark in loop.rounds:
        for inner in mark.loops:
            yield inner
            yield from _within(inner)


def loop_failures(trace: Trace) -> Iterator[str]:
    """What the emulated release does wrong with the loops over registers of a kernel."""
    for loop in trace.register_loops:
        is_nested = any(loop is inner for about in trace.register_loops for inner in _within(about))
        given = {"is_nested": is_nested, "programs": math.prod(trace.grid)}
        yield from _texts(trace, LOOP, loop.line, given)
