"""What holds for the engine program of every function."""

from __future__ import annotations

import math
from typing import Any

from neuronjax.program import text
from neuronjax.program.verify import verify
from neuronjax.timing.schedule import schedule

_HEAD = 'program "'


def broken_law(compiled: Any) -> str:
    """The law that a compiled function breaks, if any; functions without engines break none.

    Text is read back without loss, no limit of the hardware is broken, and time is a number.
    """
    lowered = compiled.as_text()
    if not lowered.startswith(_HEAD):
        return ""
    program = text.parse(lowered)
    if text.format(program) != lowered:
        return "Law: the program's text is another one after it was read"
    findings = verify(program)
    if findings:
        return f"Law: {len(findings)} limits are broken, first: {findings[0]}"
    duration = schedule(program).total_ns
    if not 0 < duration < math.inf:
        return f"Law: a run takes {duration} ns"
    return ""
