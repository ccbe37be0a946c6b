"""Bytes: where accesses lie, what they hold before, what is outside."""

from __future__ import annotations

import re

import ml_dtypes
import numpy as np
import pytest

from neuronjax.emulate.checks import NO_CHECKS, Checks, Finding, Kind
from neuronjax.emulate.core import Emulation, run
from neuronjax.errors import (
    ArgumentMismatchError,
    MemoryAccessError,
    MissingHostError,
    OutOfBoundsError,
    OverwrittenError,
    UninitialisedError,
)
from neuronjax.program.text import parse
from tests.emulate.single import execute

X = np.arange(128 * 12, dtype=np.float32).reshape(128, 12)
COPY = """
program "copy" target trainium2 lnc 1 {
  register $n
  hbm %x : float32[128, 12] argument
  hbm %start : int32[1] argument
  hbm %y : float32[128, 12] result
  kernel "it" sources ("user.py:4") {
    sbuf %t : float32[128, 12] slots 3 @ADDRESS
    register_load dst=$n src=%start[0; 1:1]
    loop i in 6 {
      dma_copy dst=%t{i}<0, 128>[2*i; 1:2] src=%x[2*i; 12:128, 1:2]
      dma_copy dst=%y[2*i; 12:128, 1:2] src=%t{i}<0, 128>[2*i; 1:2]
    }
    BODY
  }
}
"""


def copied(body: str = "", address: str = "64", start: int = 0, **options: object) -> np.ndarray:
    text = COPY.replace("ADDRESS", address).replace("BODY", body)
    arguments = {"x": X, "start": np.array([start], np.int32)}
    return run(parse(text), [arguments], **options)[0]["y"]


def test_slots_are_taken_in_turn() -> None:
    np.testing.assert_array_equal(copied(), X)


@pytest.mark.parametrize("address", ["3", "196463"])
def test_any_address_will_do(address: str) -> None:
    np.testing.assert_array_equal(copied(address=address), X)


def test_buffers_without_an_address_have_their_own_memory() -> None:
    text = COPY.replace(" @ADDRESS", "").replace("BODY", "")
    found = run(parse(text), [{"x": X, "start": np.zeros(1, np.int32)}])
    np.testing.assert_array_equal(found[0]["y"], X)


OUTSIDE = {
    "elements": ("memset dst=%t<0, 128>[8; 1:5] value=#0.0", "elements 8 to 12 of t"),
    "negative strides": ("memset dst=%t<0, 128>[3; -1:5] value=#0.0", "elements -1 to 3 of t"),
    "partitions": ("memset dst=%t<96, 64>[0; 1:2] value=#0.0", "partitions 96 to 159"),
    "a loop": (
        "loop k in 7 { memset dst=%t<0, 128>[2*k; 1:2] value=#0.0 }", r"at \{'k': 6\}",
    ),
    "a register": ("dma_copy dst=%y[0; 1:2] src=%x[4*$n; 1:2]", "elements 1600 to 1601 of x"),
}  # fmt: skip


@pytest.mark.parametrize("name", OUTSIDE)
def test_accesses_stay_in_their_buffer(name: str) -> None:
    body, words = OUTSIDE[name]
    with pytest.raises(MemoryAccessError, match=words) as caught:
        copied(body, start=400)
    assert "copy/it/" in str(caught.value)


def test_a_skipped_copy_does_nothing() -> None:
    body = "dma_copy dst=%y[0; 1:2] src=%x[4*$n; 1:2] out_of_bounds=skip"
    np.testing.assert_array_equal(copied(body, start=400), X)
    assert copied(body, start=3)[0, 0] == X[1, 0]


def test_buffers_lie_in_their_memory() -> None:
    with pytest.raises(MemoryAccessError, match="128 partitions of 229376 bytes"):
        copied(address="229370")


def test_rows_stay_in_their_table() -> None:
    table, index = X[:20, :4].copy(), np.array([[3], [20]], np.uint32)
    with pytest.raises(
        OutOfBoundsError, match="row 20 of hbm_t is out of bounds: the access has 20 rows"
    ):
        execute(
            "dma_gather dst={y} table={hbm_t} index={k}",
            {"t": table, "k": index}, {"y": ("float32", (2, 4))},
        )  # fmt: skip


PART = """memset dst=%t<0, 64>[0; 1:12] value=#0.0
      dma_copy dst=%y[0; 12:128, 1:12] src=%t<0, 128>[0; 1:12]"""


def test_unwritten_bytes_are_reported_once() -> None:
    found: list[Finding] = []
    text = COPY.replace("ADDRESS", "0").replace("BODY", f"loop k in 3 {{ {PART} }}")
    text = re.sub(r"loop i in 6 \{.*?\}\n {4}loop", "loop", text, flags=re.DOTALL)
    arguments = {"x": X, "start": np.zeros(1, np.int32)}
    result = run(parse(text), [arguments], checks=Checks(report=found.append))[0]["y"]
    assert [each.paths for each in found] == [("copy/it/k/1:dma_copy",)]
    assert "768 of 1536 elements of t" in str(found[0])
    assert np.isnan(result[64:]).all()
    assert (result[:64] == 0).all()
    with pytest.raises(UninitialisedError, match="Write them first"):
        run(parse(text), [arguments])
    run(parse(text), [arguments], checks=NO_CHECKS)


def test_a_result_of_which_a_part_is_never_written_is_reported() -> None:
    text = COPY.replace("ADDRESS", "0").replace("BODY", "").replace("loop i in 6", "loop i in 5")
    with pytest.raises(UninitialisedError, match="1024 of 6144 bytes of the result y"):
        run(parse(text), [{"x": X, "start": np.zeros(1, np.int32)}])


@pytest.mark.parametrize(
    "dtype", ["float32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2"]
)
def test_unwritten_floats_are_nan(dtype: str) -> None:
    found = execute("", {}, {"y": (dtype, (4, 4))}, checks=NO_CHECKS)["y"]
    assert np.isnan(found.astype(np.float32)).all()


def test_tiles_of_a_kernel_are_empty_again_when_it_comes_back() -> None:
    text = """
program "again" target trainium2 lnc 1 {
  hbm %x : float32[4, 4] argument
  hbm %y : float32[4, 4] result
  function @f(hbm %a : float32[4, 4]) {
    kernel "k" {
      sbuf %t : float32[4, 4] @0
      memset dst=%t<0, 4>[0; 1:2] value=#1.0
      dma_copy dst=%t<0, 4>[2; 1:2] src=%a[0; 4:4, 1:2]
      dma_copy dst=%y[0; 4:4, 1:4] src=%t<0, 4>[0; 1:4]
    }
  }
  call @f(%x)
  kernel "last" {
    sbuf %u : float32[4, 4] @0
    dma_copy dst=%y[0; 4:4, 1:4] src=%u<0, 4>[0; 1:4]
  }
}"""
    x = np.ones((4, 4), np.float32)
    with pytest.raises(UninitialisedError, match="again/last/0:dma_copy"):
        run(parse(text), [{"x": x}])


OVERLAP = """
program "overlap" target trainium2 lnc 1 {
  hbm %x : float32[8, 4] argument
  hbm %y : float32[8, 4] result
  ALIAS
  kernel "it" {
    sbuf %t : float32[8, 4] @0
    sbuf %u : float32[8, 4] @12
    dma_copy dst=%t<0, 8>[0; 1:4] src=%x[0; 4:8, 1:4]
    memset dst=%u<0, 8>[0; 1:4] value=#1.0
    dma_copy dst=%y[0; 4:8, 1:4] src=%t<0, 8>[0; 1:4]
  }
}
"""


def test_buffers_that_overlap_are_found() -> None:
    arguments = [{"x": X[:8, :4].copy()}]
    with pytest.raises(OverwrittenError, match="reads 8 of 32 elements of t that another buffer"):
        run(parse(OVERLAP.replace("ALIAS", "")), arguments)
    apart = OVERLAP.replace("ALIAS", "").replace("@12", "@16")
    np.testing.assert_array_equal(run(parse(apart), arguments)[0]["y"], arguments[0]["x"])
    found = run(parse(OVERLAP.replace("ALIAS", "alias %u = %t")), arguments)[0]["y"]
    np.testing.assert_array_equal(found[:, 3], np.ones(8))


ROUNDS = """
program "rounds" target trainium2 lnc 1 {
  hbm %x : float32[8, 4] argument
  hbm %y : float32[8, 4] result
  kernel "it" {
    sbuf %t : float32[8, 4] @0
    sbuf %u : float32[8, 4] @8
    loop i in 3 {
      dma_copy dst=%t<0, 8>[0; 1:4] src=%x[0; 4:8, 1:4]
      dma_copy dst=%y[0; 4:8, 1:4] src=%t<0, 8>[0; 1:4]
      memset dst=%u<0, 8>[0; 1:4] value=#1.0
      dma_copy dst=%y[0; 4:8, 1:4] src=%READ<0, 8>[0; 1:4]
    }
  }
}
"""


def test_what_was_read_before_is_lost_when_another_buffer_is_written() -> None:
    arguments = [{"x": X[:8, :4].copy()}]
    with pytest.raises(OverwrittenError, match="reads 16 of 32 elements of t that another buffer"):
        run(parse(ROUNDS.replace("READ", "t")), arguments)
    found = run(parse(ROUNDS.replace("READ", "u")), arguments)[0]["y"]
    np.testing.assert_array_equal(found, np.ones((8, 4)))


REUSED = """
program "reused" target trainium2 lnc 1 {
  hbm %y : float32[8, 4] result
  kernel "it" {
    sbuf %t : float32[8, 4] @0
    sbuf %u : float32[8, 4] @0
    FIRST
    memset dst=%u<0, 8>[0; 1:4] value=#1.0
    dma_copy dst=%y[0; 4:8, 1:4] src=%t<0, 8>[0; 1:4]
  }
}
"""


@pytest.mark.parametrize(
    ("first", "kind", "words"),
    [
        ("", Kind.UNINITIALISED, "reads 32 of 32 elements of t that nothing has written"),
        (
            "memset dst=%t<0, 4>[0; 1:2] value=#1.0",
            Kind.OVERWRITTEN,
            "reads 8 of 32 elements of t that another buffer has overwritten",
        ),
    ],
)
def test_histories_tell_the_unwritten_from_the_overwritten(
    first: str, kind: Kind, words: str
) -> None:
    findings: list[Finding] = []
    checks = Checks(histories=True, report=findings.append)
    run(parse(REUSED.replace("FIRST", first)), [{}], checks=checks)
    (finding,) = findings
    assert finding.kind is kind
    assert words in finding.message


def test_any_buffer_can_be_looked_at() -> None:
    text = COPY.replace("ADDRESS", "0").replace("BODY", "")
    seen = []
    emulation = Emulation(
        parse(text), [{"x": X, "start": np.zeros(1, np.int32)}],
        observe=lambda each: seen.append((each.number, each.path, dict(each.values))),
    )  # fmt: skip
    emulation.run(to=4)
    assert seen[-1] == (4, "copy/it/i/0:dma_copy", {"i": 1})
    np.testing.assert_array_equal(emulation.buffer("t", slot=1)[:, 2:4], X[:, 2:4])
    np.testing.assert_array_equal(emulation.buffer("it/t", slot=4)[:, 2:4], X[:, 2:4])
    with pytest.raises(MemoryAccessError, match="Choose from copy/it/t, start, x, y"):
        emulation.buffer("z")


@pytest.mark.parametrize("checks", [NO_CHECKS, Checks()])
def test_a_program_runs_again(checks: Checks) -> None:
    """Nothing of the run before is left: memory, registers, accumulators, random state."""
    text = """
program "again" target trainium2 lnc 1 {
  hbm %x : float32[4, 4] argument
  hbm %y : float32[4, 4] result
  hbm %z : float32[4, 4] result
  kernel "it" {
    sbuf %t : float32[4, 4]
    dma_copy dst=%t<0, 4>[0; 1:4] src=%x[0; 4:4, 1:4]
    activation dst=%t<0, 4>[0; 1:4] op=copy data=%t<0, 4>[0; 1:4] reduce_cmd=reduce
      reduce_op=add reduce_res=%t<0, 4>[0; 1:1]
    rand2 dst=%t<0, 4>[1; 1:3] low=#0.0 high=#1.0
    dma_copy dst=%y[0; 4:4, 1:4] src=%t<0, 4>[0; 1:4]
    dma_copy dst=%z[0; 4:4, 1:4] src=%y[0; 4:4, 1:4]
  }
}"""
    program, x = parse(text), X[:4, :4].copy()
    emulation = Emulation(program, [{"x": x}], checks=checks)
    emulation.run()
    first = emulation.results()[0]
    emulation.reload([{"x": x + 1}])
    emulation.run()
    second = emulation.results()[0]
    np.testing.assert_array_equal(first["z"][:, 0], x.sum(1))
    np.testing.assert_array_equal(second["z"][:, 0], x.sum(1) + 4)
    np.testing.assert_array_equal(first["z"][:, 1:], second["z"][:, 1:])
    emulation.reload([{"x": x}])
    emulation.run(to=2)
    assert np.isnan(emulation.buffer("z")).all()


def test_observers_see_what_was_written() -> None:
    text = COPY.replace("ADDRESS", "0").replace("BODY", "")
    written = []
    Emulation(
        parse(text), [{"x": X, "start": np.zeros(1, np.int32)}],
        observe=lambda each: written.append(
            [each.look(access) for access in each.instruction.accesses()]
        ),
    ).run()  # fmt: skip
    dst, src = written[3]
    np.testing.assert_array_equal(dst, X[:, 2:4])
    np.testing.assert_array_equal(src[0], X[:, 2:4])


BAD_ARGUMENTS = {
    "missing": ({"start": np.zeros(1, np.int32)}, r"takes the arguments \['start', 'x'\]"),
    "shape": ({"x": X[:4], "start": np.zeros(1, np.int32)}, r"x must be float32\[128, 12\]"),
    "dtype": ({"x": X.astype(np.float64), "start": np.zeros(1, np.int32)}, "got float64"),
}


@pytest.mark.parametrize("name", BAD_ARGUMENTS)
def test_arguments_are_checked(name: str) -> None:
    arguments, words = BAD_ARGUMENTS[name]
    text = COPY.replace("ADDRESS", "0").replace("BODY", "")
    with pytest.raises(ArgumentMismatchError, match=words):
        run(parse(text), [arguments])


HOST = 'host function="fft" dsts=({hbm_y}) srcs=({hbm_a}) attributes="length = 8"'


def test_work_for_the_host_needs_a_host() -> None:
    with pytest.raises(MissingHostError, match="fft"):
        execute(HOST, {"a": X[:4, :4].copy()}, {"y": ("float32", (4, 4))})


def test_constants_and_results_in_the_memory_of_arguments() -> None:
    text = """
program "donated" target trainium2 lnc 1 {
  hbm %x : bfloat16[4] argument
  hbm %c : bfloat16[2] constant data "803f0040"
  hbm %y : bfloat16[4] result
  alias %y = %x
  kernel "it" { dma_copy dst=%y[1; 1:2] src=%c[0; 1:2] }
}"""
    x = np.array([5, 6, 7, 8], ml_dtypes.bfloat16)
    found = run(parse(text), [{"x": x}])[0]["y"]
    assert found.astype(float).tolist() == [5, 1, 2, 8]
