"""The compiler's passes below StableHLO, in their order: what each does, and what checks it.

A pass takes a module, a graph or a program and returns the next one. `lower` is the way to a
program without addresses and semaphores, `complete` the rest of the way; `DESCRIPTION` is what
``neuronjax lower --stop_after=help`` prints.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
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
from neuronjax.lower.rewrite.shared_sums import REWRITES as SHARED_SUMS
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
        prices = self.prices_of(Program(name=self.name, target=self.target, body=()))
        assert prices is not None
        return rates_of(prices, self.target.lnc)

    @property
    def context(self) -> Context:
        """The knowledge of rules of rewriting."""
        return Context(self.tuning, self.rates, self.target.core.tensor)

    def prices_of(self, program: Program) -> Prices | None:
        """Returns what a program's instructions cost, if that is known."""
        return None if self.prices is None else self.prices(program)


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


def _change(
    name: str, contract: str, change: Callable[[Graph, Setting], object], *, nested: bool = True
) -> Pass:
    """Returns a pass that changes a graph in place, and `nested` ones of its regions before it."""

    def run(graph: Graph, setting: Setting) -> Graph:
        for part in list(graph.nested() if nested else [graph]):
            change(part, setting)
        return graph

    return Pass(name, contract, run, _graph_findings)


def _rewrite(name: str, contract: str, rules: Mapping[str, Rewrite]) -> Pass:
    return _change(
        name,
        contract,
        lambda graph, setting: rewrite(graph, rules, setting.context),
        nested=False,
    )


GRAPH_PASSES = (
    Pass("read", "the module as a graph, calls inlined", _read, _graph_findings),
    _rewrite("empty", "nothing reads empty values", EMPTY),
    _rewrite("identities", "no operation gives one of its operands as it is", IDENTITIES),
    _rewrite("blocks", "products of MX blocks read elements and scales", BLOCK_SCALED),
    _change("unscaled", "every value has a user", lambda graph, _: without_unused(graph)),
    _rewrite("expand", "operations in terms of simpler ones", REWRITES),
    _rewrite("canonical", "no result depends on which NaN an engine chooses", CANONICAL),
    _rewrite("compose", "erfc is a single operation again", COMPOSED),
    _change("count", "loops have their trip counts; slices at counters are views",
            lambda graph, _: with_counted_loops(graph), nested=False),
    _rewrite("unroll", "few element-wise operations in a loop are written out", UNROLLED),
    _change("ranks", "kernels that engines run are not told their rank",
            lambda graph, setting: without_ranks(graph, setting.target, setting.ranks)),
    _change("touch", "tables of narrow types are widened where rows are added",
            lambda graph, setting: with_touched_rows(graph, setting.context)),
    _change("used", "every value has a user", lambda graph, _: without_unused(graph)),
    _change("uncount", "no loop carries a counter that nothing reads",
            lambda graph, _: without_counters(graph)),
    _rewrite("native", "what engines do natively is a single operation", NATIVE),
    _change("round", "values that all users round are rounded where they are computed",
            lambda graph, _: rounded_early(graph)),
    _rewrite("dilate", "no convolution has zeros between elements of its input", TRANSPOSED),
    _change("rearrange", "convolutions are rearranged after element-wise operations",
            lambda graph, _: rearranged_late(graph)),
    _rewrite("spread", "vectors are converted before they are broadcast", BROADCAST_LATE),
    _change("gates", "halves of products that meet are products",
            lambda graph, setting: with_products_of_gates(graph, setting.tuning)),
    _change("sort", "keys of sorts are made once",
            lambda graph, setting: with_sort_keys(graph, setting.target.core, setting.tuning)),
    _rewrite("masks", "masks that hide most are made where they are needed", MASKS),
    _rewrite("rows", "few long rows are reduced in parts", LONG_ROWS),
    _change("widen", "every user widens a narrow value itself",
            lambda graph, _: with_own_widenings(graph)),
    _change("used_again", "every value has a user", lambda graph, _: without_unused(graph)),
    _change("choose", "products read what indices choose where it lies",
            lambda graph, setting: with_chosen_products(
                graph, setting.target.core, setting.tuning)),
    _change("unread_windows", "every value has a user", lambda graph, _: without_unused(graph)),
    _rewrite("share", "cores add up parts of long sums", SHARED_SUMS),
    _rewrite("later", "what no activation function absorbed is expanded", LATER),
    _change("broadcast", "engines write broadcast results themselves",
            lambda graph, _: with_written_broadcasts(graph), nested=False),
)  # fmt: skip
PROGRAM_PASSES = (
    Pass("write", "a kernel for each group of operations",
         lambda graph, setting: written(
             graph, setting.target, setting.ranks, setting.name, setting.donations, setting.rates,
             setting.tuning),
         _findings),
    Pass("unread", "no kernel copies what is never read",
         lambda program, _: without_unread(program), _findings),
    Pass("split", "kernels run on both cores of LNC 2 where they can",
         lambda program, setting: split(program, setting.prices_of(program), setting.tuning),
         _findings),
    Pass("join", "small kernels are merged; values stay in SBUF between them",
         lambda program, setting: join(program, setting.tuning), _findings),
    Pass("beside", "independent neighbours run side by side on both cores",
         lambda program, _: beside(program), _findings),
    Pass("interleave", "instructions are in an order that keeps engines busy",
         lambda program, setting: program if setting.prices is None else interleaved(
             program, setting.prices(program), setting.known.orders, setting.known.semaphores,
             setting.to_order, setting.tuning),
         _findings),
    Pass("kernels", "kernels of NKI stand where they are called",
         lambda program, _: written_out(program), _all_findings),
    Pass("allocate", "every buffer has an address",
         lambda program, setting: allocate(
             program, check=setting.check_memory, tuning=setting.tuning),
         _all_findings),
    Pass("ahead", "loads that wait for earlier kernels delay no others",
         lambda program, _: ahead(program), _all_findings),
    Pass("synchronise", "engines wait for what they depend on",
         lambda program, setting: synchronise(program, setting.known.semaphores), _all_findings),
    Pass("overlap", "kernels begin while earlier ones still run",
         lambda program, setting: overlapping(program, setting.tuning.overlaps), _all_findings,
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
