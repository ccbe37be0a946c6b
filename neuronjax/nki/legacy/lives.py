"""The places of tiles of a kernel of NKI 0.x: its compiler placed them by their lives.

Tensors have block dimensions there, and are often declared outside of all loops. A kernel is traced
twice if it has such: first to see in which iterations each block is used, then with a tile for the
blocks that live in one iteration of a loop, made where that iteration begins. What does not fit
into SBUF lies in HBM, is saved where it is written, and reloaded where it is read.
"""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field

from neuronjax.errors import KernelError, UnsupportedProgramError
from neuronjax.machine.chips import CHIPS
from neuronjax.nki import isa, tiles
from neuronjax.nki.constants import MemoryRegion
from neuronjax.nki.legacy.psum import Sums
from neuronjax.nki.loop_marks import LoopMarks, Mark
from neuronjax.nki.tensor import Tensor
from neuronjax.nki.tracing import Trace, current, is_tracing
from neuronjax.program.element_types import ElementType, bytes_of
from neuronjax.program.operand import Memory

Block = tuple[int, ...]
Path = tuple[tuple[int, int], ...]
"""Of every open loop, outermost first: which one it is of the iteration about it, and the number of
its own iteration."""


@dataclass(frozen=True)
class Declaration:
    """A tensor on chip as the kernel declares it: `shape` is that of a block."""

    number: int
    blocks: Block
    shape: tuple[int, ...]
    dtype: ElementType
    buffer: MemoryRegion
    name: str
    line: str
    path: Path
    fill: float | None

    @property
    def block_bytes(self) -> int:
        """Bytes of a block in each partition."""
        elements = 1
        for size in self.shape[1:]:
            elements *= size
        return elements * bytes_of(self.dtype)


@dataclass
class Use:
    """The use of a block: the iterations about all of its uses, and the instructions."""

    path: Path
    first: int
    last: int

    def extend(self, path: Path, place: int) -> None:
        """Notes one more use."""
        self.path = _common(self.path, path)
        self.last = place


@dataclass(frozen=True)
class Placement:
    """The tiles of a declaration: iterations -> the blocks that live in them."""

    depth: int
    groups: Mapping[Path, tuple[Block, ...]]


@dataclass(frozen=True)
class Plan:
    """What the first trace has shown, by the numbers of declarations."""

    placements: Mapping[int, Placement] = field(default_factory=dict)
    fills: Mapping[int, float] = field(default_factory=dict)
    #: Those that lie in HBM.
    spilled: frozenset[int] = frozenset()


@dataclass
class Lives:
    """The tiles of a kernel while it is traced; without a plan, for the first time."""

    trace: Trace
    plan: Plan | None = None
    declared: list[Declaration] = field(default_factory=list)
    uses: dict[int, dict[Block, Use]] = field(default_factory=lambda: defaultdict(dict))
    #: Bytes of the parts of each declaration that are read and written: what goes to HBM and back
    #: if it lies there.
    traffic: Counter[int] = field(default_factory=Counter)
    #: Initial values that uses ask for: those of `nl.loop_reduce`.
    fills: dict[int, float] = field(default_factory=dict)
    #: Blocks with a place.
    placed: dict[tuple[int, Block], Tensor] = field(default_factory=dict)
    #: What tiles of PSUM hold.
    sums: Sums = field(default_factory=Sums)
    #: Tensors of shared memory that programs of a grid have declared, in order.
    shared: list[Tensor] = field(default_factory=list)
    shared_so_far: int = 0
    #: The program of the grid that is traced, and the grid.
    program: Block = ()
    grid: Block = ()
    #: The places of instructions whose engine the kernel names.
    named: set[int] = field(default_factory=set)
    #: Bytes that are saved and reloaded.
    saved: int = 0
    reloaded: int = 0
    #: What was saved.
    written: set[object] = field(default_factory=set)
    #: What was reloaded in an iteration, so that it need not be again.
    at_hand: dict[object, Tensor] = field(default_factory=dict)
    _path: Path | None = None

    @property
    def needs_plan(self) -> bool:
        """Whether tiles must be placed by what the trace has shown."""
        return bool(self.fills) or any(entry.blocks for entry in self.declared)

    def path(self) -> Path:
        """The path of open loops in which the kernel is."""
        self.trace.follow()
        path, around = [], self.trace.nest.loops
        for loop in self.trace.open_loops:
            path.append((len(around) - 1, len(loop.rounds) - 1))
            around = loop.rounds[-1].loops
        return tuple(path)

    def arrive(self) -> Path:
        """Makes the tiles of iterations that have begun; where the kernel is."""
        path = self.path()
        if path == self._path:
            return path
        before = self._path
        self._path = path
        self.at_hand.clear()
        if self.plan is not None:
            for depth in range(len(path) + 1):
                if before is None or path[:depth] != before[:depth]:
                    self._make(path[:depth], depth)
        return path

    def _make(self, prefix: Path, depth: int) -> None:
        assert self.plan is not None
        inner = self.trace.open_loops[depth:]
        for entry in self.declared:
            placement = self.plan.placements.get(entry.number)
            if placement is None or placement.depth != depth or len(entry.path) >= depth:
                continue
            blocks = placement.groups.get(prefix)
            if blocks:
                begun = self.trace.mark()
                self.place(entry, blocks)
                _begin_later(inner, begun, self.trace.mark())

    def declare(
        self,
        blocks: Block,
        shape: tuple[int, ...],
        dtype: ElementType,
        buffer: MemoryRegion,
        name: str,
        fill: float | None,
    ) -> Declaration:
        """A new tensor with block dimensions, or none."""
        path = self.arrive()
        number = len(self.declared)
        entry = Declaration(
            number, blocks, shape, dtype, buffer, name, self.trace.line(), path, fill
        )
        self.declared.append(entry)
        if self.plan is not None and number in self.plan.placements:
            placement = self.plan.placements[number]
            if placement.depth <= len(path):
                all_blocks = [block for group in placement.groups.values() for block in group]
                self.place(entry, tuple(sorted(all_blocks)))
        return entry

    def place(self, entry: Declaration, blocks: tuple[Block, ...]) -> None:
        """Makes one tile for some blocks."""
        rows, *free = entry.shape
        made = tiles.ndarray((rows, len(blocks), *free), entry.dtype, entry.buffer, entry.name)
        fill = self.fill_of(entry)
        in_psum = entry.buffer is MemoryRegion.psum
        is_written = fill is not None and not (in_psum and fill == 0.0)
        if is_written:
            isa.memset(made, fill)
        for number, block in enumerate(blocks):
            view = made[:, number : number + 1].squeeze_dim(1) if free else made[:, number]
            self.placed[entry.number, block] = view
            if in_psum and not is_written:
                self.sums.declare(view, has_zeros=fill is not None)

    def fill_of(self, entry: Declaration) -> float | None:
        """The value that all of it has at first."""
        fills = self.plan.fills if self.plan else {}
        return fills.get(entry.number, entry.fill)

    def block(self, entry: Declaration, block: Block) -> Tensor:
        """The tile of a block, which is used here."""
        path = self.arrive()
        if self.plan is None:
            place = len(self.trace.instructions)
            use = self.uses[entry.number].get(block)
            if use is None:
                self.uses[entry.number][block] = Use(path, place, place)
                self.place(entry, (block,))
            else:
                use.extend(path, place)
        known = self.placed.get((entry.number, block))
        if known is None:
            raise KernelError(
                f"{self.trace.line()}: the kernel is traced twice, since tensors with block "
                "dimensions are placed by their lives, and takes another way the second time; let "
                "it depend on its arguments alone."
            )
        return known

    def planned(self) -> Plan:
        """The plan of where tiles are to lie, by what this trace has shown."""
        placements, spans = {}, []
        for entry in self.declared:
            uses = self.uses.get(entry.number)
            if not entry.blocks or not uses:
                continue
            depth = max(len(entry.path), min(len(use.path) for use in uses.values()))
            groups: dict[Path, list[Block]] = defaultdict(list)
            for block, use in uses.items():
                groups[use.path[:depth]].append(block)
            placements[entry.number] = Placement(
                depth, {path: tuple(sorted(blocks)) for path, blocks in groups.items()}
            )
            if entry.buffer is MemoryRegion.sbuf:
                for blocks in groups.values():
                    first = min(uses[block].first for block in blocks)
                    last = max(uses[block].last for block in blocks)
                    size = len(blocks) * entry.block_bytes
                    spans.append(_Span(entry.number, first, last, size))
        own = {tile.storage.name for (_, block), tile in self.placed.items() if block}
        others = list(self._other_spans(own))
        capacity, count = _capacity(self.trace.chip), len(self.trace.instructions)
        spilled = _spilled(spans, others, capacity, count, self.traffic)
        for number in spilled:
            placements.pop(number)
        return Plan(placements, dict(self.fills), frozenset(spilled))

    def _other_spans(self, own: set[str]) -> Iterator[_Span]:
        known: dict[str, _Span] = {}
        for place, instruction in enumerate(self.trace.instructions):
            for access in instruction.accesses():
                buffer = access.buffer
                if buffer.memory is Memory.SBUF and buffer.name not in own:
                    span = known.get(buffer.name)
                    first = place if span is None else span.first
                    known[buffer.name] = _Span(-1, first, place, buffer.slot_bytes)
        yield from known.values()


@dataclass(frozen=True)
class _Span:
    """Memory that is needed from one instruction to another, in bytes of each partition."""

    number: int
    first: int
    last: int
    size: int


def _spilled(
    spans: list[_Span],
    others: list[_Span],
    capacity: int,
    instructions: int,
    traffic: Mapping[int, int],
) -> set[int]:
    """The declarations that are to lie in HBM, so that the others fit: of those that live where
    most is needed, the one whose traffic is least for the room that it leaves."""
    spilled: set[int] = set()
    while True:
        kept = [span for span in spans if span.number not in spilled]
        changes = [0] * (instructions + 2)
        for span in (*kept, *others):
            changes[span.first] += span.size
            changes[span.last + 1] -= span.size
        level, most, place = 0, 0, 0
        for number, change in enumerate(changes):
            level += change
            if level > most:
                most, place = level, number
        freed = Counter[int]()
        for span in kept:
            if span.first <= place <= span.last:
                freed[span.number] += span.size
        if most <= capacity or not freed:
            return spilled
        spilled.add(min(freed, key=lambda number: traffic[number] / freed[number]))


def _capacity(chip: str) -> int:
    return CHIPS[chip].core.sbuf.usable_partition_bytes


def _common(first: Path, second: Path) -> Path:
    length = 0
    for mine, other in zip(first, second, strict=False):
        if mine != other:
            break
        length += 1
    return first[:length]


def _begin_later(loops: Sequence[LoopMarks], begun: Mark, now: Mark) -> None:
    """Lets iterations that have begun at a mark, and done nothing since, begin at a later one."""
    for loop in loops:
        loop.rounds[:] = [
            dataclasses.replace(mark, instructions=now.instructions, buffers=now.buffers)
            if (mark.instructions, mark.buffers) == (begun.instructions, begun.buffers)
            else mark
            for mark in loop.rounds
        ]


_LIVES: ContextVar[Lives] = ContextVar("lives")


def set_lives(lives: Lives) -> object:
    """Makes `lives` the current one; returns the token for `reset_lives`."""
    return _LIVES.set(lives)


def reset_lives(token: object) -> None:
    """Restores what was current before `set_lives`."""
    _LIVES.reset(token)  # type: ignore[arg-type]


def lives() -> Lives:
    """The lives in the kernel that is traced.

    UnsupportedProgramError: none of NKI 0.x is.
    """
    known = _LIVES.get(None)
    if known is None:
        raise UnsupportedProgramError(
            f"{_place()}neuronxcc.nki is NKI 0.x, and its functions work in kernels marked by "
            "neuronxcc.nki.jit. A kernel is written in one of the dialects: import nki for the "
            "present one."
        )
    return known


def _place() -> str:
    return f"{current().line()}: " if is_tracing() else ""
