"""Small programs for tests of time, as text."""

from __future__ import annotations

from pathlib import Path

from neuronjax.program.program import Program
from neuronjax.program.text import parse
from neuronjax.timing.validation.programs import programs

GOLDEN = Path(__file__).parents[1] / "program" / "golden"


def golden() -> dict[str, Program]:
    """The golden programs of the room of instructions, by name."""
    return {path.stem: parse(path.read_text()) for path in sorted(GOLDEN.glob("*.txt"))}


def every() -> dict[str, Program]:
    """All programs that tests of time have."""
    loops = {
        "pipeline": pipeline(40),
        "unsynchronised": unsynchronised(5_000),
        "run ahead": run_ahead(3_000),
        "two slots": pipeline(41, slots=2, work=100),
    }
    return {f"golden {name}": program for name, program in golden().items()} | programs() | loops


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
