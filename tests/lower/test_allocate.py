"""Addresses: values survive until they are read, and memory is shared only where it must be."""

from __future__ import annotations

import dataclasses
import itertools
import time
from pathlib import Path

import pytest
from hypothesis import given, settings

from neuronjax.errors import DeviceMemoryError, PsumOverflowError, SbufOverflowError
from neuronjax.lower.memory.account import account
from neuronjax.lower.memory.allocate import allocate
from neuronjax.lower.memory.lifetimes import lives
from neuronjax.lower.memory.placement import Piece, peak, place
from neuronjax.lower.write.rebuild import with_buffers
from neuronjax.program.operand import Buffer, Kind
from neuronjax.program.program import Kernel, Program
from neuronjax.program.text import format, parse
from neuronjax.program.verify import verify
from neuronjax.program.walk import buffers, kernels
from tests.lower.nests import programs
from tests.lower.unrolled import Byte, steps, touched

GOLDEN = sorted((Path(__file__).parents[1] / "program" / "golden").glob("*.txt"))


def without_addresses(program: Program) -> Program:
    def bare(known: tuple[Buffer, ...]) -> dict[str, Buffer]:
        return {each.name: dataclasses.replace(each, address=None) for each in known}

    tiles = {id(kernel): bare(kernel.buffers) for _, kernel in kernels(program)}
    return with_buffers(program, bare(program.buffers), tiles)


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_programs_get_addresses_that_a_chip_takes(path: Path) -> None:
    bare = without_addresses(parse(path.read_text()))
    found = allocate(bare)
    parameters = {each for function in found.functions for each in function.parameters}
    assert all(b.address is not None for _, b in buffers(found) if b not in parameters)
    assert [str(finding) for finding in verify(found)] == []
    assert format(without_addresses(found)).replace(" stride 2048", "") == format(bare)


def test_addresses_that_are_there_stay() -> None:
    program = parse(GOLDEN[-1].read_text())
    assert allocate(program) == program


def shared(program: Program) -> Program:
    """The kernel's tiles as close together as their lives allow."""
    kernel = program.body[0]
    assert isinstance(kernel, Kernel)
    used = lives(kernel.body, kernel.buffers)
    pieces = [
        Piece(each.extent, 4, (0, each.partitions - 1), (used[each],) if each in used else ())
        for each in kernel.buffers
    ]
    found = place(pieces, [], 1 << 20, reuse=True)
    assert found is not None
    placed = {
        buffer.name: dataclasses.replace(buffer, address=at)
        for buffer, at in zip(kernel.buffers, found, strict=True)
    }
    assert peak(list(zip(found, pieces, strict=True))) <= sum(piece.size + 4 for piece in pieces)
    return with_buffers(program, {}, {id(kernel): placed})


@pytest.mark.slow
@given(programs(addressed=False))
@settings(max_examples=300, deadline=None)
def test_values_survive_until_they_are_read(program: Program) -> None:
    """In program order, a read finds what was last written to the same place of the same tile."""
    kernel = shared(program).body[0]
    assert isinstance(kernel, Kernel)
    memory: dict[Byte, Byte] = {}
    written: set[Byte] = set()
    for step in steps(kernel):
        uses = [use for use in step.instruction.uses() if hasattr(use.operand, "buffer")]
        for use in uses:
            if use.role.is_read:
                for byte, inside in touched(use.operand, step.values):
                    assert inside not in written or memory[byte] == inside
        for use in uses:
            if use.role.is_write:
                for byte, inside in touched(use.operand, step.values):
                    memory[byte] = inside
                    written.add(inside)


CHAIN = """program "chain" target trainium2 lnc 1 {{
  hbm %x : float32[128, 16] argument
  hbm %y : float32[128, 16] result
  kernel "chain" sources ("user.py:7") {{
    {memory} %a : float32[128, {size}]
    {memory} %b : float32[128, {size}]
    {memory} %c : float32[128, {size}]
    tensor_copy dst=%a<0, 128>[0; 1:{size}] src=%x[0; 1:{size}]
    tensor_copy dst=%b<0, 128>[0; 1:{size}] src=%a<0, 128>[0; 1:{size}]
    tensor_copy dst=%c<0, 128>[0; 1:{size}] src=%b<0, 128>[0; 1:{size}]
    dma_copy dst=%y[0; 1:{size}] src=%c<0, 128>[0; 1:{size}]
  }}
}}
"""


def addresses(memory: str, size: int) -> list[int | None]:
    program = allocate(parse(CHAIN.format(memory=memory, size=size)))
    return [buffer.address for _, buffer in buffers(program) if buffer.on_chip]


@pytest.mark.parametrize(
    ("memory", "size", "expected"),
    [
        ("sbuf", 16, 3),
        ("sbuf", 25000, 2),
        ("psum", 512, 3),
        ("psum", 2048, 2),
    ],
)
def test_tiles_share_memory_only_if_they_must(memory: str, size: int, expected: int) -> None:
    assert len(set(addresses(memory, size))) == expected


def test_tiles_in_psum_begin_at_banks() -> None:
    assert sorted(each or 0 for each in addresses("psum", 16)) == [0, 2048, 4096]


def test_what_does_not_fit_names_the_kernel_and_its_tiles() -> None:
    with pytest.raises(SbufOverflowError, match=r"kernel chain \(from user\.py:7\).*float32\[128"):
        addresses("sbuf", 40000)
    with pytest.raises(PsumOverflowError, match="fewer slots"):
        addresses("psum", 3000)


ROUNDS = """program "rounds" target trainium2 lnc 1 {{
  register $more limit 1
  hbm %x : float32[128, 64] argument
  hbm %y : float32[128, 64] result
  hbm %one : float32[128, 64]
  hbm %two : float32[128, 64]
  hbm %three : float32[128, 64]
  function @step(hbm %in : float32[128, 64], hbm %out : float32[128, 64]) {{
    kernel "first" {{
      dma_copy dst=%two[0; 1:8192] src=%in[0; 1:8192]
    }}
    kernel "second" {{
      dma_copy dst=%out[0; 1:8192] src=%two[0; 1:8192]
    }}
  }}
  {body}
}}
"""
COPY = 'kernel "copy" {{ dma_copy dst=%{}[0; 1:8192] src=%{}[0; 1:8192] }}'


def places(*body: str) -> dict[str, int]:
    program = allocate(parse(ROUNDS.format(body="\n".join(body))))
    assert [str(each) for each in verify(program)] == []
    known = [(each.name, each.address) for each in program.buffers]
    return {name: address for name, address in known if address is not None}


def test_scratch_of_other_times_shares_memory() -> None:
    chain = [COPY.format("one", "x"), COPY.format("two", "one"), COPY.format("three", "two")]
    found = places(*chain, COPY.format("y", "three"))
    assert found["one"] == found["three"] != found["two"]


def test_scratch_of_functions_is_free_between_calls() -> None:
    between = [COPY.format("three", "one"), COPY.format("one", "three")]
    found = places("call @step(%x, %one)", *between, "call @step(%one, %y)")
    assert found["two"] == found["three"] != found["one"]


def test_what_a_loop_carries_keeps_its_place() -> None:
    flag = 'kernel "flag" { register_move dst=$more src=#0 }'
    loop = ["while {", flag, "} do $more {"]
    carried = places(
        COPY.format("one", "x"), *loop, COPY.format("three", "one"), COPY.format("one", "three"),
        "call @step(%x, %y)", "}", COPY.format("y", "one"),
    )  # fmt: skip
    assert len({carried["one"], carried["two"], carried["three"]}) == 2
    assert carried["one"] not in (carried["two"], carried["three"])


def test_what_an_iteration_makes_is_free_once_it_is_read() -> None:
    """Also where it is not filled whole: nothing was there before the loop."""
    half = COPY.replace("8192", "4096")
    chain = [half.format("one", "x"), half.format("two", "one"), half.format("three", "two")]
    found = places("loop round in 3 {", *chain, half.format("y", "three"), "}")
    assert found["one"] == found["three"] != found["two"]


def test_a_program_too_large_for_hbm_says_what_is_large() -> None:
    text = GOLDEN[-1].read_text().replace("@0", "").replace("@512000", "")
    program = parse(text.replace("[128, 1000] result", "[128000, 1000000] result"))
    with pytest.raises(DeviceMemoryError, match=r"result y float32\[128000, 1000000\]"):
        allocate(program)
    assert allocate(program, check=False).buffers[1].address is not None


def test_memory_use_adds_up() -> None:
    program = allocate(without_addresses(parse((GOLDEN[0].parent / "matmul.txt").read_text())))
    use = account(program)
    assert use.hbm_by_kind == {
        Kind.ARGUMENT: 2 * 512 * (256 + 1024), Kind.RESULT: 4 * 256 * 1024,
        Kind.CONSTANT: 0, Kind.SCRATCH: 0,
    }  # fmt: skip
    assert use.hbm_peak_bytes == sum(use.hbm_by_kind.values())
    assert use.sbuf_peak == {"matmul": 2 * (256 + 1024 + 2048)}
    assert use.psum_peak == {"matmul": 2 * 2048}
    assert use.sbuf_resident_bytes == use.spilled_bytes == 0


def test_large_programs_take_seconds() -> None:
    lines = ["a", "b", *(f"t{i}" for i in range(1500))]
    text = "\n".join(f"hbm %{name} : float32[128, 64]" for name in lines)
    body = "\n".join(COPY.format(new, old) for old, new in itertools.pairwise(lines))
    program = parse('program "long" target trainium2 lnc 1 {' + text + body + "}")
    start = time.process_time()
    found = allocate(program)
    assert time.process_time() - start < 10
    assert account(found).hbm_peak_bytes == 2 * 4 * 128 * 64
