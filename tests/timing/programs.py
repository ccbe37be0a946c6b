"""Small programs for tests of time, as text."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from neuronjax.program.program import Program
from neuronjax.program.text import parse
from neuronjax.timing.validation.measured_kernels import programs

ANOMALY = 1.1
"""Queues in order share engines, so one thing done sooner may get in the way of another: Graham's
anomalies of list scheduling. They stay small."""

GOLDEN = Path(__file__).parents[1] / "program" / "golden"


@functools.cache
def golden() -> Mapping[str, Program]:
    """The golden programs of the room of instructions, by name."""
    parsed = {path.stem: parse(path.read_text()) for path in sorted(GOLDEN.glob("*.txt"))}
    return MappingProxyType(parsed)


@functools.cache
def every() -> Mapping[str, Program]:
    """All programs that tests of time have."""
    loops = {
        "pipeline": pipeline(40),
        "unsynchronised": unsynchronised(5_000),
        "run ahead": run_ahead(3_000),
        "two slots": pipeline(41, slots=2, work=100),
    }
    of_golden = {f"golden {name}": program for name, program in golden().items()}
    return MappingProxyType(of_golden | programs() | loops)


def pipeline(
    trips: int, *, slots: int = 2, work: int = 2_000, target: str = "trainium2", lnc: int = 1
) -> Program:
    """Loads, work on the Vector engine, and stores, through `slots` tiles."""
    return parse(
        f"""
program "pipeline" target {target} lnc {lnc} {{
  hbm %x : float32[{128 * trips}, 2048] argument
  hbm %y : float32[{128 * trips}, 2048] result
  kernel "pipeline" {{
    semaphore !loaded
    semaphore !worked
    semaphore !stored
    sbuf %in : float32[128, 2048] slots {slots}
    sbuf %out : float32[128, 2048] slots {slots}
    loop i in {trips} {{
      dma_copy dst=%in{{i}}<0, 128>[0; 1:{work}] src=%x[262144*i; 2048:128, 1:{work}]"""
        f""" waits=(!worked >= i + {1 - slots}) signals=(!loaded += 16)
      tensor_scalar dst=%out{{i}}<0, 128>[0; 1:{work}] data=%in{{i}}<0, 128>[0; 1:{work}]"""
        f""" op0=multiply operand0=#2.0 waits=(!loaded >= 16*i + 16,"""
        f""" !stored >= 16*i + {16 - 16 * slots}) signals=(!worked += 1)
      dma_copy queue=1 dst=%y[262144*i; 2048:128, 1:{work}] src=%out{{i}}<0, 128>[0; 1:{work}]"""
        f""" engine=scalar waits=(!worked >= i + 1) signals=(!stored += 16)
    }}
  }}
}}
"""
    )


def unsynchronised(trips: int) -> Program:
    """Two engines that know nothing of each other."""
    return parse(
        f"""
program "unsynchronised" target trainium2 lnc 1 {{
  kernel "both" {{
    sbuf %a : float32[128, 512]
    sbuf %b : float32[128, 512]
    loop i in {trips} {{
      memset dst=%a<0, 128>[0; 1:512] value=#0.0
      activation dst=%b<0, 128>[0; 1:100] op=square data=%b<0, 128>[100; 1:100]
    }}
  }}
}}
"""
    )


def run_ahead(trips: int) -> Program:
    """Vector starts late and is faster, Scalar waits for it only at the end of its lead."""
    return parse(
        f"""
program "run_ahead" target trainium2 lnc 1 {{
  kernel "run_ahead" {{
    semaphore !made
    sbuf %a : float32[128, 512]
    sbuf %b : float32[128, 512]
    sbuf %c : float32[128, 8192]
    activation dst=%c<0, 128>[0; 1:8192] op=square data=%c<0, 128>[0; 1:8192]
    activation dst=%c<0, 128>[0; 1:8192] op=square data=%c<0, 128>[0; 1:8192]
    loop i in {trips} {{
      memset dst=%a<0, 128>[0; 1:200] value=#1.0 signals=(!made += 1)
      activation dst=%b<0, 128>[0; 1:100] op=square data=%b<0, 128>[100; 1:100]"""
        f""" waits=(!made >= i + 1)
    }}
  }}
}}
"""
    )


@dataclass(frozen=True)
class Stage:
    """An instruction of `loop_of`; `waits` is for the one before it."""

    engine: str
    size: int
    waits: bool


def loop_of(stages: Sequence[Stage], trips: Sequence[int], slots: int, before: int) -> Program:
    """A loop of `stages`, in as many loops as `trips` has; Scalar begins `before` squares later.

    A stage that waits does so for the stage before it in its own trip; the first stage, for the
    last one of `slots` trips ago.
    """
    variables = [f"v{depth}" for depth in range(len(trips))]
    strides = [math.prod(trips[depth + 1 :]) for depth in range(len(trips))]
    last = len(stages) - 1
    lines = []
    for number, stage in enumerate(stages):
        gain = 16 if stages[number - 1].engine == "dma" else 1
        terms = [f"{gain * by}*{name}" for by, name in zip(strides, variables, strict=True)]
        bound = " + ".join([*terms, str(gain if number else gain * (1 - slots))])
        words = [_WORK[stage.engine].format(size=stage.size, number=number)]
        if stage.waits:
            words.append(f"waits=(!s{number - 1 if number else last} >= {bound})")
        words.append(f"signals=(!s{number} += {16 if stage.engine == 'dma' else 1})")
        lines.append(" ".join(words))
    heads = [f"loop {name} in {size} {{" for name, size in zip(variables, trips, strict=True)]
    return parse(
        "\n".join(
            [
                'program "loop" target trainium2 lnc 1 {',
                "hbm %x : float32[128, 2048] argument",
                'kernel "loop" {',
                *(f"semaphore !s{number}" for number in range(len(stages))),
                *(f"sbuf %t{number} : float32[128, 2048]" for number in range(len(stages))),
                "sbuf %u : float32[128, 2048]",
                *[_WORK["scalar"].format(size=1_000, number=0).replace("%t0", "%u")] * before,
                *heads,
                *lines,
                *["}"] * (len(heads) + 2),
            ]
        )
    )


_WORK = {
    "vector": "memset dst=%t{number}<0, 128>[0; 1:{size}] value=#1.0",
    "scalar": "activation dst=%t{number}<0, 128>[0; 1:{size}] op=square"
    " data=%t{number}<0, 128>[0; 1:{size}]",
    "dma": "dma_copy queue={number} dst=%t{number}<0, 128>[0; 1:{size}]"
    " src=%x[0; 2048:128, 1:{size}]",
}
