"""Random kernels: nests of copies between small tiles, on any engine or DMA queue."""

from __future__ import annotations

from hypothesis import strategies as st

from neuronjax.formats import FORMATS
from neuronjax.machine.specs import Engine
from neuronjax.program.affine import affine
from neuronjax.program.collective import AllReduce
from neuronjax.program.dma import DmaCopy
from neuronjax.program.operand import Access, Buffer, Dim, Memory
from neuronjax.program.operators import AluOp
from neuronjax.program.program import Kernel, Loop, Node, Program, Target
from neuronjax.program.vector_engine import CopyPredicated, TensorCopy, TensorTensor

ENGINES = (Engine.VECTOR, Engine.SCALAR, Engine.GPSIMD)
DTYPES = (FORMATS["bfloat16"], FORMATS["float32"])


@st.composite
def tiles(draw: st.DrawFn, name: str, addressed: bool) -> Buffer:
    """A small tile; with an address, it may well lie over another one."""
    dtype = draw(st.sampled_from(DTYPES))
    width = dtype.storage_bits // 8
    return Buffer(
        name=name,
        memory=draw(st.sampled_from((Memory.SBUF, Memory.SBUF, Memory.HBM))),
        dtype=dtype,
        shape=(2, draw(st.sampled_from((4, 6)))),
        slots=draw(st.sampled_from((1, 1, 2, 3))),
        address=width * draw(st.integers(0, 10)) if addressed else None,
    )


@st.composite
def accesses(draw: st.DrawFn, buffer: Buffer, trips: dict[str, int]) -> Access:
    """An access within the buffer in every iteration."""
    stride = draw(st.sampled_from((1, 1, 2)))
    size = draw(st.integers(1, max(1, buffer.elements // stride // 2)))
    room = buffer.elements - 1 - stride * (size - 1)
    terms = {}
    for name, count in trips.items():
        step = draw(st.sampled_from((0, 0, 1, 2)))
        if step and step * (count - 1) <= room:
            terms[name] = step
            room -= step * (count - 1)
    full = draw(st.booleans())
    slot = {name: draw(st.sampled_from((0, 1, 1, 2))) for name in trips}
    lanes = 1 if not buffer.on_chip else draw(st.integers(1, 2))
    return Access(
        buffer=buffer,
        partition=affine(draw(st.integers(0, buffer.partitions - lanes))),
        partitions=lanes,
        offset=affine(0) if full else affine(draw(st.integers(0, room)), **terms),
        dims=(Dim(1, buffer.elements),) if full else (Dim(stride, size),),
        slot=affine(draw(st.integers(0, 2)), **slot) if buffer.slots > 1 else affine(),
    )


@st.composite
def leaves(draw: st.DrawFn, known: list[Buffer], trips: dict[str, int]) -> Node:
    """One instruction; whether its operands fit each other does not matter here."""

    def one() -> Access:
        return draw(accesses(draw(st.sampled_from(known)), trips))

    kind = draw(st.sampled_from(("copy", "copy", "dma", "dma", "two", "update", "collective")))
    if kind == "copy":
        return TensorCopy(dst=one(), src=one(), engine=draw(st.sampled_from(ENGINES)))
    if kind == "two":
        return TensorTensor(dst=one(), data1=one(), data2=one(), op=AluOp.ADD)
    if kind == "update":
        return CopyPredicated(dst=one(), src=one(), predicate=one())
    if kind == "collective":
        return AllReduce(
            dsts=(one(),), srcs=(one(),), groups=((0,),), stream=draw(st.integers(0, 1))
        )
    starter = draw(st.sampled_from((Engine.SYNC, Engine.SCALAR)))
    return DmaCopy(dst=one(), src=one(), engine=starter, queue=draw(st.integers(0, 1)))


@st.composite
def bodies(
    draw: st.DrawFn, known: list[Buffer], trips: dict[str, int], depth: int
) -> tuple[Node, ...]:
    """One to three nodes, loops among them."""
    found: list[Node] = []
    for _ in range(draw(st.integers(1, 3))):
        if depth and draw(st.booleans()):
            name = f"i{len(trips)}"
            count = draw(st.integers(1, 4))
            body = draw(bodies(known, {**trips, name: count}, depth - 1))
            found.append(Loop(variable=name, trips=count, body=body))
        else:
            found.append(draw(leaves(known, trips)))
    return tuple(found)


@st.composite
def programs(draw: st.DrawFn, *, addressed: bool) -> Program:
    """A program of one kernel."""
    known = [draw(tiles(name, addressed)) for name in ("a", "b", "c")[: draw(st.integers(1, 3))]]
    body = draw(bodies(known, {}, 3))
    outer = tuple(each for each in known if not each.on_chip)
    own = tuple(each for each in known if each.on_chip)
    kernel = Kernel(name="random", body=body, buffers=own)
    return Program(name="random", target=Target("trainium2"), body=(kernel,), buffers=outer)


@st.composite
def loops(draw: st.DrawFn, names: str, trips: tuple[int, int], most: int) -> Program:
    """A program of one loop without loops in it, of 2 to `most` copies between tiles of these
    names, with the fewest and the most `trips` given."""
    known = [draw(tiles(name, addressed=False)) for name in names]
    count = draw(st.integers(*trips))
    body = draw(st.lists(leaves(known, {"i": count}), min_size=2, max_size=most))
    own = tuple(buffer for buffer in known if buffer.on_chip)
    kernel = Kernel(
        name="random", body=(Loop(variable="i", trips=count, body=tuple(body)),), buffers=own
    )
    outer = tuple(buffer for buffer in known if not buffer.on_chip)
    return Program(name="random", target=Target("trainium2"), body=(kernel,), buffers=outer)
