"""The compiler's passes below StableHLO, in their order: what each does, and what checks it.

A pass takes a module, a graph or a program and returns the next one. `lower` is the way to a
program without addresses and semaphores, `complete` the rest of the way; `DESCRIPTION` is what
``neuronjax lower --stop_after=help`` prints.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from neuronjax.errors import FailedPassError
from neuronjax.hlo import chlo
from neuronjax.hlo import graph as hlo_graph
from neuronjax.hlo.graph import Graph
from neuronjax.hlo.graph_text import malformed, printed
from neuronjax.jaxlib_api.mlir import ir
from neuronjax.lower.chain import elementwise
from neuronjax.lower.control.native_kernels import without_ranks, written_out
from neuronjax.lower.cores.beside import beside
from neuronjax.lower.cores.split import split
from neuronjax.lower.join.join import join
from neuronjax.lower.join.unread import without_unread
from neuronjax.lower.lowering import written
from neuronjax.lower.memory.allocate import allocate
from neuronjax.lower.prices import Prices
from neuronjax.lower.rates import Rates, rates_of
from neuronjax.lower.rewrite.block_scaled import BLOCK_SCALED
from neuronjax.lower.rewrite.chosen import with_chosen_products
from neuronjax.lower.rewrite.composed import COMPOSED
from neuronjax.lower.rewrite.counted import with_counted_loops, without_counters
from neuronjax.lower.rewrite.empty import EMPTY
from neuronjax.lower.rewrite.expansions import REWRITES
from neuronjax.lower.rewrite.gates import with_products_of_gates
from neuronjax.lower.rewrite.identities import BROADCAST_LATE, IDENTITIES
from neuronjax.lower.rewrite.long_rows import LONG_ROWS
from neuronjax.lower.rewrite.masks import MASKS
from neuronjax.lower.rewrite.narrow import rounded_early
from neuronjax.lower.rewrite.native import (
    CANONICAL,
    LATER,
    NATIVE,
    with_own_widenings,
    with_written_broadcasts,
    without_unused,
)
from neuronjax.lower.rewrite.rearranged import rearranged_late
from neuronjax.lower.rewrite.sort_keys import with_sort_keys
from neuronjax.lower.rewrite.touched_rows import with_touched_rows
from neuronjax.lower.rewrite.transposed import REWRITES as TRANSPOSED
from neuronjax.lower.rewrite.unrolled import UNROLLED
from neuronjax.lower.rewriter import Context, Rewrite, rewrite
from neuronjax.lower.rules import RULES
from neuronjax.lower.schedule.interleave import Candidate, Orders, count_kinds, interleaved
from neuronjax.lower.schedule.worthwhile import Shares
from neuronjax.lower.sync.ahead import ahead
from neuronjax.lower.sync.overlapping import overlapping
from neuronjax.lower.sync.synchronise import Semaphores, synchronise
from neuronjax.lower.tuning import DEFAULT, Tuning
from neuronjax.program import text
from neuronjax.program.program import Program, Target
from neuronjax.program.verify import UNORDERED, Finding, verify, verify_assembled


@dataclass(frozen=True, slots=True)
class Known:
    """Results for kernels that several programs may have in common."""

    orders: Orders = field(default_factory=Orders)
    semaphores: Semaphores = field(default_factory=Semaphores)


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The knowledge of passes beside the program that they work on."""

    target: Target
    ranks: int = 1
    name: str = "main"
    donations: Mapping[int, int | None] = field(default_factory=dict)
    """Donated argument -> the result that is to take its memory; None: any."""
    prices: Callable[[Program], Prices] | None = None
    """What instructions cost where the program runs; None: those of a lowered program stay in
    their order."""
    tuning: Tuning = DEFAULT
    """The numbers that the compiler is free to choose."""
    known: Known = field(default_factory=Known)
    """What earlier programs have found."""
    to_order: Set[Candidate] | None = None
    """The kinds of kernels for which an order is looked for; None: those that promise enough."""
    check_memory: bool = True
    """Whether the program has to fit into its core's HBM."""
    verify_passes: bool = False
    """Check what every pass leaves, not the finished program alone."""
    watch: Callable[[Pass, Any], None] | None = None
    """Is shown what every pass leaves."""

    @property
    def rates(self) -> Rates:
        """The prices of what plans are made of. `lower` cannot do without them."""
        assert self.prices is not None
        prices = self.prices(Program(name=self.name, target=self.target, body=()))
        return rates_of(prices, self.target.lnc)


@dataclass(frozen=True)
class Pass:
    """A step of the compiler.

    `verify` lists what is wrong with what the pass leaves; `always` is as much of it as every
    compilation can afford.
    """

    name: str
    contract: str
    run: Callable[[Any, Setting], Any]
    verify: Callable[[Any, Setting], Sequence[object]]
    always: Callable[[Any, Setting], Sequence[object]] | None = None


def _read(module: ir.Module, setting: Setting) -> Graph:
    hlo_graph.prepare(module)
    known = (*RULES, *elementwise.RULES, *LATER)
    chlo.expand(module, [name for name in known if name.startswith("chlo.")])
    return hlo_graph.read(module)


def _rewritten(graph: Graph, setting: Setting, *, rules: Mapping[str, Rewrite]) -> Graph:
    rewrite(graph, rules, Context(setting.tuning, setting.rates, setting.target.core.tensor))
    return graph


def _changed(graph: Graph, setting: Setting, *, change: Callable[[Graph], None]) -> Graph:
    change(graph)
    return graph


def _without_ranks(graph: Graph, setting: Setting) -> Graph:
    without_ranks(graph, setting.target, setting.ranks)
    return graph


def _with_gates(graph: Graph, setting: Setting) -> Graph:
    with_products_of_gates(graph, setting.tuning)
    return graph


def _with_chosen_products(graph: Graph, setting: Setting) -> Graph:
    with_chosen_products(graph, setting.target.core.tensor, setting.tuning)
    without_unused(graph)
    return graph


def _with_touched_rows(graph: Graph, setting: Setting) -> Graph:
    with_touched_rows(graph, Context(setting.tuning, setting.rates, setting.target.core.tensor))
    return graph


def _with_sort_keys(graph: Graph, setting: Setting) -> Graph:
    with_sort_keys(graph, setting.target.core, setting.tuning)
    return graph


def _written(graph: Graph, setting: Setting) -> Program:
    return written(
        graph, setting.target, setting.ranks, setting.name, setting.donations, setting.rates,
        setting.tuning,
    )  # fmt: skip


def _unread(program: Program, setting: Setting) -> Program:
    return without_unread(program)


def _split(program: Program, setting: Setting) -> Program:
    prices = None if setting.prices is None else setting.prices(program)
    return split(program, prices, setting.tuning)


def _joined(program: Program, setting: Setting) -> Program:
    return join(program, setting.tuning)


def _beside(program: Program, setting: Setting) -> Program:
    return beside(program)


def _interleaved(program: Program, setting: Setting) -> Program:
    if setting.prices is None:
        return program
    known = setting.known
    return interleaved(
        program,
        setting.prices(program),
        known.orders,
        known.semaphores,
        setting.to_order,
        setting.tuning,
    )


def _with_kernels(program: Program, setting: Setting) -> Program:
    return written_out(program)


def _allocated(program: Program, setting: Setting) -> Program:
    return allocate(program, check=setting.check_memory, tuning=setting.tuning)


def _synchronised(program: Program, setting: Setting) -> Program:
    return synchronise(program, setting.known.semaphores)


def _ahead(program: Program, setting: Setting) -> Program:
    return ahead(program)


def _overlapping(program: Program, setting: Setting) -> Program:
    return overlapping(program, setting.tuning.overlaps)


def _graph_findings(graph: Graph, setting: Setting) -> Sequence[object]:
    return malformed(graph)


def _findings(program: Program, setting: Setting) -> Sequence[object]:
    return _counting(setting, verify(program))


def _all_findings(program: Program, setting: Setting) -> Sequence[object]:
    """Findings where kernels of NKI are part of a program: which core writes last is their own
    business, and kernels of the compiler have been checked before."""
    findings = _findings(program, setting)
    return [finding for finding in findings if getattr(finding, "rule", "") != UNORDERED]


def _assembled_findings(program: Program, setting: Setting) -> Sequence[object]:
    return _counting(setting, verify_assembled(program))


def _counting(setting: Setting, findings: Sequence[Finding]) -> Sequence[object]:
    """The findings that count where the program may be larger than the memory."""
    return [finding for finding in findings if setting.check_memory or finding.rule != "capacity"]


def _rewrite(name: str, contract: str, rules: Mapping[str, Rewrite]) -> Pass:
    return Pass(name, contract, partial(_rewritten, rules=rules), _graph_findings)


def _change(name: str, contract: str, change: Callable[[Graph], None]) -> Pass:
    return Pass(name, contract, partial(_changed, change=change), _graph_findings)


GRAPH_PASSES = (
    Pass("read", "the module as a graph, calls inlined", _read, _graph_findings),
    _rewrite("empty", "nothing reads empty values", EMPTY),
    _rewrite("identities", "no operation gives one of its operands as it is", IDENTITIES),
    _rewrite("blocks", "products of MX blocks read elements and scales", BLOCK_SCALED),
    _change("unscaled", "every value has a user", without_unused),
    _rewrite("expand", "operations in terms of simpler ones", REWRITES),
    _rewrite("canonical", "no result depends on which NaN an engine chooses", CANONICAL),
    _rewrite("compose", "erfc is a single operation again", COMPOSED),
    _change(
        "count", "loops have their trip counts; slices at counters are views", with_counted_loops
    ),
    _rewrite("unroll", "few element-wise operations in a loop are written out", UNROLLED),
    Pass(
        "ranks", "kernels that engines run are not told their rank", _without_ranks, _graph_findings
    ),
    Pass(
        "touch",
        "tables of narrow types are widened where rows are added",
        _with_touched_rows,
        _graph_findings,
    ),
    _change("used", "every value has a user", without_unused),
    _change("uncount", "no loop carries a counter that nothing reads", without_counters),
    _rewrite("native", "what engines do natively is a single operation", NATIVE),
    _change(
        "round", "values that all users round are rounded where they are computed", rounded_early
    ),
    _rewrite("dilate", "no convolution has zeros between elements of its input", TRANSPOSED),
    _change(
        "rearrange",
        "convolutions are rearranged after element-wise operations",
        rearranged_late,
    ),
    _rewrite("spread", "vectors are converted before they are broadcast", BROADCAST_LATE),
    Pass("gates", "halves of products that meet are products", _with_gates, _graph_findings),
    Pass("sort", "keys of sorts are made once", _with_sort_keys, _graph_findings),
    _rewrite("masks", "masks that hide most are made where they are needed", MASKS),
    _rewrite("rows", "few long rows are reduced in parts", LONG_ROWS),
    _change("widen", "every user widens a narrow value itself", with_own_widenings),
    _change("used_again", "every value has a user", without_unused),
    Pass(
        "choose",
        "products read what indices choose where it lies",
        _with_chosen_products,
        _graph_findings,
    ),
    _rewrite("later", "what no activation function absorbed is expanded", LATER),
    _change("broadcast", "engines write broadcast results themselves", with_written_broadcasts),
)
PROGRAM_PASSES = (
    Pass("write", "a kernel for each group of operations", _written, _findings),
    Pass("unread", "no kernel copies what is never read", _unread, _findings),
    Pass("split", "kernels run on both cores of LNC 2 where they can", _split, _findings),
    Pass("join", "small kernels are merged; values stay in SBUF between them", _joined, _findings),
    Pass("beside", "independent neighbours run side by side on both cores", _beside,
         _findings),
    Pass("interleave", "instructions are in an order that keeps engines busy", _interleaved,
         _findings),
    Pass("kernels", "kernels of NKI stand where they are called", _with_kernels, _all_findings),
    Pass("allocate", "every buffer has an address", _allocated, _all_findings),
    Pass("ahead", "loads that wait for earlier kernels delay no others", _ahead, _all_findings),
    Pass("synchronise", "engines wait for what they depend on", _synchronised, _all_findings),
    Pass("overlap", "kernels begin while earlier ones still run", _overlapping, _all_findings,
         _assembled_findings),
)  # fmt: skip
PASSES = (*GRAPH_PASSES, *PROGRAM_PASSES)
"""All passes, in order."""
_TO_PROGRAM = (*GRAPH_PASSES, *PROGRAM_PASSES[:2])
_TO_ORDER = PROGRAM_PASSES[2:5]
_TO_THE_END = PROGRAM_PASSES[5:]

DESCRIPTION = "\n".join(f"  {entry.name:<12} {entry.contract}" for entry in PASSES)
"""Names and contracts, a line each."""


def lower(module: ir.Module, setting: Setting) -> Program:
    """The program of one core. Argument i is buffer ``arg{i}``, result i is ``res{i}``.

    Values of no elements, and tokens, have no buffer.

    Raises:
      UnsupportedProgramError: dynamic shapes, or types unknown to PJRT.
      FailedPassError: a pass left what cannot be; a defect of ours.
    """
    return _run(_TO_PROGRAM, module, setting)


def arrange(program: Program, setting: Setting) -> Program:
    """A lowered program, split over the cores and joined, before its kernels get other orders."""
    return _run(_TO_ORDER, program, setting)


def count_kernels(program: Program, setting: Setting) -> Shares[Candidate]:
    """How often each kind of kernel runs in an arranged program."""
    if setting.prices is None:
        return Shares({})
    known = setting.known
    return count_kinds(
        program, setting.prices(program), known.orders, known.semaphores, setting.tuning
    )


def complete(program: Program, setting: Setting) -> Program:
    """An arranged program as a core runs it: in order, with addresses and semaphores.

    Raises:
      SbufOverflowError, PsumOverflowError, DeviceMemoryError: something does not fit.
      FailedPassError: as `lower`.
    """
    return _run(_TO_THE_END, program, setting)


def _run(passes: Iterable[Pass], state: Any, setting: Setting) -> Any:
    for pass_ in passes:
        state = pass_.run(state, setting)
        if setting.watch is not None:
            setting.watch(pass_, state)
        findings: Sequence[object] = ()
        if setting.verify_passes:
            findings = pass_.verify(state, setting)
        elif pass_.always is not None:
            findings = pass_.always(state, setting)
        if findings:
            raise FailedPassError(
                f"compiler pass {pass_.name!r} ({pass_.contract}) left program {setting.name!r}"
                f" with {len(findings)} findings; the first is: {findings[0]} This is a bug in"
                " neuronjax: please report it with the output of `neuronjax lower"
                f" --stop_after={pass_.name}`. NEURONJAX_VERIFY_PASSES=1 checks every pass;"
                " NEURONJAX_EXECUTOR=host computes without this program."
            )
    return state


def shown(state: Graph | Program) -> str:
    """Returns the program that a pass leaves, as text."""
    return printed(state) if isinstance(state, Graph) else text.format(state)
