"""Going through a program: places, and how often instructions run."""

from __future__ import annotations

from pathlib import Path

from neuronjax.machine.specs import Engine
from neuronjax.program.program import Loop
from neuronjax.program.text import parse
from neuronjax.program.verify import verify
from neuronjax.program.walk import buffers, instructions, kernels, walk
from tests.program.counts import count_instructions

GOLDEN = Path(__file__).parent / "golden"
MATMUL = parse((GOLDEN / "matmul.txt").read_text())
CONTROL = parse((GOLDEN / "control.txt").read_text())


def test_counts_are_those_of_the_loops() -> None:
    assert count_instructions(MATMUL) == {
        "dma_copy": 2 * 2 * 4 * 2 + 2 * 2, "nc_matmul": 2 * 2 * 4, "tensor_copy": 2 * 2
    }  # fmt: skip
    by_engine = count_instructions(MATMUL, lambda each: each.engine)
    assert by_engine == {
        Engine.SYNC: 32, Engine.SCALAR: 4, Engine.TENSOR: 16, Engine.VECTOR: 4
    }  # fmt: skip


def test_functions_count_for_each_call_and_both_branches_count() -> None:
    counts = count_instructions(CONTROL)
    assert counts["activation"] == 1
    assert counts["dma_copy"] == 1 + 2 + 1
    assert counts["host"] == 1


def test_places() -> None:
    paths = {place.path: place for place, _ in instructions(MATMUL)}
    place = paths["matmul/matmul/m/n/k/2:nc_matmul"]
    assert [loop.variable for loop in place.loops] == ["m", "n", "k"]
    assert place.trips == {"m": 2, "n": 2, "k": 4}
    assert place.times == 16
    assert place.kernel.name == "matmul"
    loops = [place for place, node in walk(MATMUL) if isinstance(node, Loop)]
    assert [len(place.loops) for place in loops] == [0, 1, 2]


def test_kernels_and_buffers_of_functions_are_found() -> None:
    places = [place.path for place, _ in kernels(CONTROL)]
    assert places[0] == "layer/layer"
    assert len(places) == 5
    assert {"input", "output", "row", "cache"} <= {buffer.name for _, buffer in buffers(CONTROL)}


def test_long_loops_cost_nothing() -> None:
    """10¹² instructions are walked, counted and verified as the three that they are."""
    program = parse("""
        program "long" target trainium2 lnc 1 {
          kernel "k" {
            sbuf %t : float32[128, 8] slots 2 @0
            loop i in 1000000 { loop j in 1000000 {
              memset dst=%t{i + j}<0, 128>[0; 1:8] value=#0
              reciprocal dst=%t{i + j}<0, 128>[0; 1:8] data=%t{i + j}<0, 128>[0; 1:8]
            } }
          }
        }""")
    assert count_instructions(program)["memset"] == 10**12
    assert verify(program) == ()
