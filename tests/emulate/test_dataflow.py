"""Engines beside each other: what orders them, what races, what waits for ever."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest

from neuronjax.emulate.checks import Checks, Finding, Kind
from neuronjax.emulate.core import DataflowOrder, Emulation, run
from neuronjax.errors import AccumulationError, DeadlockError, ExecutionError, RaceError
from neuronjax.program.program import Program
from neuronjax.program.text import parse
from neuronjax.program.walk import instructions
from tests.emulate.chain import chained, without_wait
from tests.emulate.programs import CASES, GOLDEN, golden

Arguments = list[dict[str, np.ndarray]]
SEEDS = [DataflowOrder(seed) for seed in range(3)] + [DataflowOrder(0, adversarial=True)]

TWO_QUEUES = """
program "two" target trainium2 lnc 1 {
  hbm %x : float32[128, 64] argument
  hbm %y : float32[128, 64] result
  kernel "copy" sources ("user.py:3") {
    semaphore !in
    semaphore !out
    sbuf %t : float32[128, 64] slots 2
    loop i in 4 {
      dma_copy dst=%t{i}<0, 128>[0; 1:16] src=%x[16*i; 64:128, 1:16]
        waits=(!out >= 16*i + -16) signals=(!in += 16)
      dma_copy queue=1 dst=%y[16*i; 64:128, 1:16] src=%t{i}<0, 128>[0; 1:16] engine=scalar
        waits=(!in >= 16*i + 16) signals=(!out += 16)
    }
  }
}
"""


def collect(
    program: Program, arguments: list[dict[str, np.ndarray]], order: DataflowOrder
) -> list[Finding]:
    """The findings of a run; what ends it counts as one."""
    found: list[Finding] = []
    try:
        run(program, arguments, order=order, checks=Checks(report=found.append))
    except ExecutionError as error:
        found.append(Finding(Kind.UNINITIALISED, 0, (), str(error)))
    return found


def rng_arguments(name: str) -> Arguments:
    return CASES[name].arguments(np.random.default_rng(0))


X = np.random.default_rng(1).standard_normal((128, 64)).astype(np.float32)


@pytest.mark.parametrize("order", SEEDS, ids=str)
def test_double_buffering(order: DataflowOrder) -> None:
    results = run(parse(TWO_QUEUES), [{"x": X}], order=order)
    np.testing.assert_array_equal(results[0]["y"], X)


Mutation = Callable[[str], str]
MUTATIONS: dict[str, tuple[Mutation, type[ExecutionError]]] = {
    "the reader does not wait": (lambda t: t.replace("waits=(!in >= 16*i + 16)", ""), RaceError),
    "the writer does not wait": (lambda t: t.replace("waits=(!out >= 16*i + -16)", ""), RaceError),
    "a wait for too little": (lambda t: t.replace("16*i + 16)", "16*i)"), RaceError),
    "early reuse": (lambda t: t.replace("16*i + -16)", "16*i + -32)"), RaceError),
    "fewer slots": (lambda t: t.replace("slots 2", "slots 1"), RaceError),
    "a wait for too much": (lambda t: t.replace("16*i + -16)", "16*i + 16)"), DeadlockError),
    "no signal": (lambda t: t.replace(" signals=(!in += 16)", ""), DeadlockError),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_mutations_are_found(name: str) -> None:
    change, error = MUTATIONS[name]
    assert change(TWO_QUEUES) != TWO_QUEUES
    checks = Checks(uninitialised=False)
    program = parse(change(TWO_QUEUES))
    with pytest.raises(error) as caught:  # noqa: PT012  some seed finds it
        for order in SEEDS:
            run(program, [{"x": X}], order=order, checks=checks)
    assert "two/copy/i/" in str(caught.value)
    assert "user.py:3" in str(caught.value)


def test_a_deadlock_names_who_waits_for_what() -> None:
    text = TWO_QUEUES.replace(" signals=(!in += 16)", "")
    with pytest.raises(
        DeadlockError, match=r"1:dma_copy .*at \{'i': 0\} waits for !in >= 16 \(now 0\)"
    ):
        run(parse(text), [{"x": X}], order=DataflowOrder(5))


@pytest.mark.parametrize("order", SEEDS, ids=str)
def test_interleaved_columns_do_not_race(order: DataflowOrder) -> None:
    """Two engines write every second element: the same range, disjoint bytes."""
    text = """
program "interleaved" target trainium2 lnc 1 {
  hbm %y : bfloat16[8, 32] result
  kernel "it" {
    semaphore !done
    sbuf %t : bfloat16[8, 32]
    memset dst=%t<0, 8>[0; 2:16] value=#1.0 signals=(!done += 1)
    memset dst=%t<0, 8>[1; 2:16] value=#2.0 engine=gpsimd signals=(!done += 1)
    dma_copy dst=%y[0; 32:8, 1:32] src=%t<0, 8>[0; 1:32] waits=(!done >= 2)
  }
}
"""
    found = run(parse(text), [{}], order=order)[0]["y"].astype(np.float32)
    np.testing.assert_array_equal(found, np.tile([1.0, 2.0], (8, 16)))
    overlapping = text.replace("[1; 2:16]", "[0; 2:16]")
    with pytest.raises(RaceError, match="overwrites what"):
        run(parse(overlapping), [{}], order=order, checks=Checks(uninitialised=False))


ONE_QUEUE = """
program "one queue" target trainium2 lnc 1 {
  hbm %y : float32[8, 32] result
  kernel "it" {
    semaphore !first
    sbuf %a : float32[8, 32]
    sbuf %b : float32[8, 32]
    memset dst=%a<0, 8>[0; 1:32] value=#1.0 engine=gpsimd
    memset dst=%b<0, 8>[0; 1:32] value=#2.0 engine=scalar
    dma_copy dst=%y[0; 32:8, 1:32] src=%a<0, 8>[0; 1:32] engine=gpsimd
    semaphore_event engine=gpsimd signals=(!first += 1)
    dma_copy dst=%y[0; 32:8, 1:32] src=%b<0, 8>[0; 1:32] engine=scalar waits=(!first >= 1)
  }
}
"""


@pytest.mark.parametrize("order", SEEDS, ids=str)
def test_a_queue_orders_transfers_that_are_begun_in_order(order: DataflowOrder) -> None:
    """Of two engines, the second begins its transfer when the first one has begun its own."""
    assert run(parse(ONE_QUEUE), [{}], order=order)[0]["y"].tolist() == [[2.0] * 32] * 8


@pytest.mark.parametrize("order", SEEDS, ids=str)
def test_a_queue_does_not_order_what_two_engines_feed_to_it(order: DataflowOrder) -> None:
    text = ONE_QUEUE.replace(" waits=(!first >= 1)", "")
    with pytest.raises(RaceError, match="overwrites what"):
        run(parse(text), [{}], order=order)


WITHOUT_CONTROL = sorted(path.stem for path in GOLDEN.glob("*.txt") if path.stem != "control")


@pytest.mark.parametrize("name", WITHOUT_CONTROL)
def test_a_wait_that_is_missing_is_found(name: str) -> None:
    """Each instruction that depends on the one before, on another engine, must wait for it."""
    program = chained(golden(name))
    arguments = rng_arguments(name)
    for path in dependent(program):
        mutant = without_wait(program, path)
        runs = (collect(mutant, arguments, order) for order in SEEDS)
        assert any(path in str(each) for found in runs for each in found), path


def dependent(program: Program) -> list[str]:
    """Paths of instructions that read what the one right before wrote, by another engine."""
    listed = list(instructions(program))
    return [
        place.path
        for (_, before), (place, node) in pairwise(listed)
        if {each.buffer.name for each in before.writes() if hasattr(each, "buffer")}
        & {each.buffer.name for each in node.reads() if hasattr(each, "buffer")}
        and (before.engine != node.engine or hasattr(before, "queue"))
    ][:3]


def test_one_semaphore_of_two_queues_is_a_race() -> None:
    """The product waits for two transfers, and may see two of one queue."""
    arguments = rng_arguments("matmul")
    orders = [DataflowOrder(seed) for seed in range(4)]
    found = [each for order in orders for each in collect(golden("matmul"), arguments, order)]
    assert {each.kind for each in found} >= {Kind.RACE}


def test_a_seed_makes_the_same_run_again() -> None:
    def paths(seed: int) -> list[str]:
        seen: list[str] = []
        Emulation(
            parse(TWO_QUEUES), [{"x": X}], order=DataflowOrder(seed),
            observe=lambda each: seen.append(f"{each.path} {each.values}"),
        ).run()  # fmt: skip
        return seen

    assert paths(3) == paths(3)
    assert len({tuple(paths(seed)) for seed in range(8)}) > 1


def test_kernels_are_separated() -> None:
    """A kernel reads what the one before wrote, without semaphores between the two."""
    first = TWO_QUEUES[TWO_QUEUES.index("  kernel") : TWO_QUEUES.rindex("}")]
    second = first.replace('"copy"', '"again"').replace("%y[", "%z[").replace("%x[", "%y[")
    text = TWO_QUEUES.replace(first, first + second)
    text = text.replace("result\n", "\n  hbm %z : float32[128, 64] result\n")
    for order in SEEDS:
        np.testing.assert_array_equal(run(parse(text), [{"x": X}], order=order)[0]["z"], X)


REGISTERS = """
program "registers" target trainium2 lnc 1 {
  register $n limit 7
  register $twice limit 14
  hbm %start : int32[1] argument
  hbm %x : float32[16, 4] argument
  hbm %y : float32[7, 4] result
  kernel "it" {
    semaphore !known
    semaphore !go
    sbuf %t : float32[1, 4] slots 8
    register_load dst=$n src=%start[0; 1:1]
    register_alu dst=$twice op=multiply left=$n right=#2 signals=(!known += 1)
    dma_copy dst=%t{0}[0; 1:4] src=%x[4*$twice; 1:4] descriptors=hwdge engine=scalar
      waits=(!known >= 1) signals=(!go += 1)
    register_move dst=$twice src=#0
    if $n {
      loop i in $n {
        dma_copy dst=%y[4*i; 1:4] src=%t{0}[0; 1:4] waits=(!go >= 1)
      }
    }
  }
}
"""


@pytest.mark.parametrize("order", SEEDS, ids=str)
def test_registers_keep_their_value_for_those_who_read_before(order: DataflowOrder) -> None:
    arguments = {"start": np.array([7], np.int32), "x": X[:16, :4].copy()}
    results = run(parse(REGISTERS), [arguments], order=order)
    np.testing.assert_array_equal(results[0]["y"], np.stack([arguments["x"][14]] * 7))


def test_a_register_of_another_engine_must_be_waited_for() -> None:
    arguments = {"start": np.array([5], np.int32), "x": X[:16, :4].copy()}
    text = REGISTERS.replace("waits=(!known >= 1)", "")
    with pytest.raises(RaceError, match=r"register \$twice"):
        run(parse(text), [arguments], order=DataflowOrder(0))


PSUM = """
program "psum" target trainium2 lnc 1 {
  hbm %a : float32[32, 32] argument
  hbm %c : float32[32, 32] result
  kernel "it" sources ("user.py:9") {
    sbuf %t : float32[32, 32]
    sbuf %r : float32[32, 32]
    psum %s : float32[32, 32]
    dma_copy dst=%t<0, 32>[0; 1:32] src=%a[0; 32:32, 1:32]
    loop i in 2 {
      loop k in 2 {
        nc_matmul dst=%s<0, 32>[0; 1:32] stationary=%t<0, 32>[0; 1:32]
          moving=%t<0, 32>[0; 1:32] start=first(k) stop=last(k)
      }
      tensor_copy dst=%r<0, 32>[0; 1:32] src=%s<0, 32>[0; 1:32]
    }
    dma_copy dst=%c[0; 32:32, 1:32] src=%r<0, 32>[0; 1:32]
  }
}
"""
PSUM_MUTATIONS: dict[str, tuple[Mutation, str]] = {
    "no start": (lambda t: t.replace("start=first(k)", "start=false"), "adds where no group has"),
    "start once": (
        lambda t: t.replace("first(k)", "first(i, k)"),
        "adds where no group has started",
    ),
    "no stop": (lambda t: t.replace("stop=last(k)", "stop=false"), "touches an unfinished group"),
    "start twice": (
        lambda t: t.replace("start=first(k)", "start=true"),
        "starts a group before the last",
    ),
}


def test_accumulation() -> None:
    a = X[:32, :32].copy()
    found = run(parse(PSUM), [{"a": a}])[0]["c"]
    wide = a.astype(np.float64)
    np.testing.assert_allclose(found, 2 * wide.T @ wide, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("name", PSUM_MUTATIONS)
def test_accumulation_groups(name: str) -> None:
    change, words = PSUM_MUTATIONS[name]
    assert change(PSUM) != PSUM
    with pytest.raises(AccumulationError, match=words):
        run(parse(change(PSUM)), [{"a": X[:32, :32].copy()}])
