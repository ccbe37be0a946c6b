"""Collectives compute what they say, and ranks that do not meet are told so."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest

from neuronjax.emulate.core import DataflowOrder, Order, ProgramOrder, run
from neuronjax.errors import ArgumentMismatchError, CollectiveError
from neuronjax.program.text import parse
from tests.emulate.chain import chained

RANKS = 4
PAIRS = ((0, 2), (1, 3))
ORDERS: list[Order] = [ProgramOrder(), DataflowOrder(0), DataflowOrder(1, adversarial=True)]


def text(instruction: str, dtype: str, rows: int, *, before: str = "", registers: str = "") -> str:
    return f"""
program "together" target trainium2 lnc 1 ranks {RANKS} {{
  {registers}
  hbm %x : {dtype}[8, 6] argument
  hbm %y : {dtype}[{rows}, 6] result
  kernel "it" sources ("user.py:7") {{
    {before}
    {instruction.replace("X", "%x[0; 6:8, 1:6]").replace("Y", f"%y[0; 6:{rows}, 1:6]")}
  }}
}}"""


def values(dtype: str) -> list[np.ndarray]:
    rng = np.random.default_rng(2)
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    if kind.kind in "iu":
        return [rng.integers(-(2**31), 2**31, (8, 6)).astype(kind) for _ in range(RANKS)]
    return [rng.standard_normal((8, 6)).astype(kind) for _ in range(RANKS)]


def total(arrays: list[np.ndarray]) -> np.ndarray:
    """The sum, rounded to the type once."""
    kind = arrays[0].dtype
    wide = np.int64 if kind.kind in "iu" else np.float64
    return sum(each.astype(wide) for each in arrays).astype(kind)


def group_of(rank: int) -> list[int]:
    return list(next(pair for pair in PAIRS if rank in pair))


Expected = Callable[[list[np.ndarray], int], np.ndarray]
CASES: list[tuple[str, int, Expected]] = [
    ("all_reduce dsts=(Y) srcs=(X) groups=((0, 1, 2, 3))", 8, lambda x, _: total(x)),
    ("all_reduce dsts=(Y) srcs=(X) groups=((0, 2), (1, 3)) op=maximum", 8,
     lambda x, r: np.maximum(*(x[each] for each in group_of(r)))),
    ("all_gather dsts=(Y) srcs=(X) groups=((0, 2), (1, 3))", 16,
     lambda x, r: np.concatenate([x[each] for each in group_of(r)])),
    ("reduce_scatter dsts=(Y) srcs=(X) groups=((0, 2), (1, 3))", 4,
     lambda x, r: np.split(total([x[each] for each in group_of(r)]), 2)[group_of(r).index(r)]),
    ("all_to_all dsts=(Y) srcs=(X) groups=((3, 2, 1, 0))", 8,
     lambda x, r: np.concatenate([np.split(x[each], 4)[3 - r] for each in (3, 2, 1, 0)])),
    ("collective_permute dsts=(Y) srcs=(X) pairs=((0, 1), (1, 3), (3, 0))", 8,
     lambda x, r: {1: x[0], 3: x[1], 0: x[3]}.get(r, np.zeros_like(x[0]))),
    ("collective_permute_implicit dsts=(Y) srcs=(X) groups=((2, 0, 3, 1))", 8,
     lambda x, r: x[{2: 1, 0: 2, 3: 0, 1: 3}[r]]),
    ("collective_permute_implicit dsts=(Y) srcs=(X, X) groups=((0, 2), (1, 3)) op=add", 8,
     lambda x, r: total([x[(r + 2) % 4]] * 2)),
]  # fmt: skip


@pytest.mark.parametrize("order", ORDERS, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32"])
@pytest.mark.parametrize(("instruction", "rows", "expected"), CASES, ids=[c[0] for c in CASES])
def test_collective(
    instruction: str, rows: int, expected: Expected, dtype: str, order: Order
) -> None:
    x = values(dtype)
    results = run(parse(text(instruction, dtype, rows)), [{"x": each} for each in x], order=order)
    for rank, found in enumerate(results):
        wanted = expected(x, rank)
        step = 0 if dtype == "int32" else 2.0**-20 if dtype == "float32" else 2.0**-8
        error = np.abs(found["y"].astype(np.float64) - wanted.astype(np.float64))
        assert np.all(error <= step * np.maximum(1, np.abs(wanted.astype(np.float64))))


BY_RANK = "rank_id dst=$r\nregister_alu dst=$odd op=bitwise_and left=$r right=#1\n"
BAD: dict[str, tuple[str, str]] = {
    "a rank leaves": (
        "if $odd { all_reduce dsts=(Y) srcs=(X) groups=((0, 1, 2, 3)) }",
        r"wait forever: rank 1 at together/it/2:if/0:all_reduce \(user.py:7\).*Ranks \[0, 2\]",
    ),
    "another operator": (
        "if $odd { all_reduce dsts=(Y) srcs=(X) groups=((0, 1, 2, 3)) } else {"
        " all_reduce dsts=(Y) srcs=(X) groups=((0, 1, 2, 3)) op=maximum }",
        r"different collectives.*maximum",
    ),
    "another instruction": (
        "if $odd { all_reduce dsts=(Y) srcs=(X) groups=((0, 1, 2, 3)) } else {"
        " all_to_all dsts=(Y) srcs=(X) groups=((0, 1, 2, 3)) }",
        "different collectives",
    ),
    "another shape": (
        "if $odd { all_reduce dsts=(Y) srcs=(X) groups=((0, 1, 2, 3)) } else {"
        " all_reduce dsts=(%y[0; 1:24]) srcs=(%x[0; 1:24]) groups=((0, 1, 2, 3)) }",
        r"float32\[24\]",
    ),
    "other groups": (
        "if $odd { all_reduce dsts=(Y) srcs=(X) groups=((0, 1), (2, 3)) } else {"
        " all_reduce dsts=(Y) srcs=(X) groups=((0, 1, 2, 3)) }",
        r"wait forever: .*groups \(\(0, 1\), \(2, 3\)\)",
    ),
    "another order": (
        "if $odd { all_reduce dsts=(Y) srcs=(X) groups=((0, 1, 2, 3))"
        " all_to_all dsts=(Y) srcs=(X) groups=((0, 1, 2, 3)) } else {"
        " all_to_all dsts=(Y) srcs=(X) groups=((0, 1, 2, 3))"
        " all_reduce dsts=(Y) srcs=(X) groups=((0, 1, 2, 3)) }",
        "different collectives",
    ),
    "a rank that is missing": ("all_reduce dsts=(Y) srcs=(X) groups=((0, 1))", "do not include it"),
    "a rank that does not exist": (
        "all_reduce dsts=(Y) srcs=(X) groups=((0, 1, 2, 3, 4))", r"ranks \[4\] do not exist",
    ),
}  # fmt: skip


@pytest.mark.parametrize("order", ORDERS, ids=str)
@pytest.mark.parametrize("name", BAD)
def test_ranks_that_do_not_meet(name: str, order: Order) -> None:
    instruction, words = BAD[name]
    registers = "register $r limit 3\nregister $odd limit 1"
    program = parse(text(instruction, "float32", 8, before=BY_RANK, registers=registers))
    arguments = [{"x": each} for each in values("float32")]
    messages = set()
    for _ in range(2):
        with pytest.raises(CollectiveError, match=words) as caught:
            run(program, arguments, order=order)
        messages.add(str(caught.value))
    assert len(messages) == 1


@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_a_group_does_not_wait_for_others(order: Order) -> None:
    """Ranks 0 and 2 are through with the first collective before 1 and 3 begin it."""
    body = (
        "all_reduce dsts=(Y) srcs=(X) groups=((0, 2), (1, 3))\n"
        "all_reduce dsts=(X) srcs=(Y) groups=((0, 1), (2, 3))\n"
        "dma_copy dst=Y src=X"
    )
    x = values("int32")
    program = chained(parse(text(body, "int32", 8)))
    for found in run(program, [{"x": each} for each in x], order=order):
        np.testing.assert_array_equal(found["y"], total(x))


@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_two_ranks_exchange(order: Order) -> None:
    send = "sendrecv src=X dst=Y send_to_rank={0} recv_from_rank={0}"
    body = f"if $odd {{ {send.format(0)} }} else {{ {send.format(1)} }}"
    registers = "register $r limit 1\nregister $odd limit 1"
    made = text(body, "float32", 8, before=BY_RANK, registers=registers)
    x = values("float32")[:2]
    program = parse(made.replace(f"ranks {RANKS}", "ranks 2"))
    found = run(program, [{"x": each} for each in x], order=order)
    np.testing.assert_array_equal(found[0]["y"], x[1])
    np.testing.assert_array_equal(found[1]["y"], x[0])


def test_ranks_have_numbers() -> None:
    program = parse(f"""
program "numbers" target trainium2 lnc 1 ranks {RANKS} {{
  register $r limit 3
  hbm %y : int32[1] result
  kernel "it" {{ rank_id dst=$r register_store dst=%y[0; 1:1] src=$r }}
}}""")
    for order in ORDERS:
        found = run(program, [{}] * RANKS, order=order)
        assert [int(each["y"][0]) for each in found] == [0, 1, 2, 3]


def test_every_rank_has_arguments() -> None:
    with pytest.raises(ArgumentMismatchError, match="runs on 4 ranks"):
        run(parse(text(CASES[0][0], "float32", 8)), [{"x": values("float32")[0]}])
