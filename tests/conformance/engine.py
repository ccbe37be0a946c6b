"""Lowers the StableHLO conformance programs to engines, emulates them, and compares with XLA:CPU.

  python -m tests.conformance.engine
  python -m tests.conformance.engine --match='sort*' --skip='scatter*' --out=results.jsonl

  python -m tests.conformance.engine --seeds=20

With --seeds programs also run with addresses and semaphores, engines beside each other: in so many
dataflow orders, and with transfers that end as late as they may. All must give the same bits,
without a race.

Eligible are programs without complex numbers and float64, which no engine has. Prints, by
operation, how many programs are eligible, are lowered without an operation left to the host, and
agree with XLA:CPU; then what is wrong with the others. With --out, one JSON object per program is
written as it is done; with --summary, the counts of all of them.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatch
from pathlib import Path

import jax
from absl import app, flags

from neuronjax.program.program import Program
from neuronjax.program.verify import verify
from tests.conformance import stablehlo_data
from tests.lower import differential
from tests.lower.differential import EXACT, FUNCTION, Tolerance, orders

_INELIGIBLE = re.compile(r"complex<|f64|!quant|\?x|<\?")
_ERROR_CHARACTERS = 300
_EXACT_CHECK = "expect_eq"

SUMS = frozenset({
    "conv_general_dilated", "cumlogsumexp", "cumprod", "cumsum", "dot_general", "integer_pow",
    "reduce_prod", "reduce_sum", "reduce_window_add", "scatter_add", "scatter_mul",
    "select_and_gather_add", "select_and_scatter_add",
})  # fmt: skip
"""Operations whose results depend on the order of sums or products."""

SUMMED = Tolerance(ulps=4, relative=1e-5, roundings=2)
"""Engines add in float32; XLA:CPU rounds every sum of a shorter type to that type."""

ITERATIONS: dict[str, Tolerance] = {
    "acos": Tolerance(ulps=4, relative=1e-6),
    "igamma": Tolerance(relative=1e-4),
    "igammac": Tolerance(relative=1e-4),
    "regularized_incomplete_beta": Tolerance(relative=1e-4),
    "lgamma": Tolerance(ulps=16, relative=1e-6),
    "digamma": Tolerance(ulps=16, relative=1e-6),
    "tridiagonal_solve": Tolerance(relative=1e-4),
    "random_split_": EXACT,
}
"""Operations made of many functions, whose last digits add up."""


@dataclass(frozen=True)
class Result:
    """What became of one program: whether it was lowered, and what of it was left to the host.

    `error` is empty if it agrees with XLA:CPU.
    """

    name: str
    family: str
    lowered: bool
    host: tuple[str, ...]
    error: str
    seconds: float


def tolerance_of(program: stablehlo_data.Program) -> Tolerance:
    """How far the results of a program may be from XLA:CPU's."""
    if program.family in ITERATIONS:
        return ITERATIONS[program.family]
    if program.family in SUMS:
        return SUMMED
    return EXACT if _EXACT_CHECK in program.text else FUNCTION


def programs(match: str, skip: str) -> Iterator[stablehlo_data.Program]:
    """The eligible programs of the archive."""
    for program in stablehlo_data.read_programs(stablehlo_data.archive_path()):
        chosen = fnmatch(program.name, match) and not fnmatch(program.name, skip)
        if chosen and not _INELIGIBLE.search(program.text):
            yield program


def code_of(program: stablehlo_data.Program) -> bytes:
    """The program as lowering gets it when a user's client compiles it."""
    runnable = stablehlo_data.make_runnable(program, opaque_inputs=True)
    return differential.compiled(runnable.module)


def run_program(program: stablehlo_data.Program, seeds: int | None = None) -> Result:
    """Runs one program; whatever is raised becomes the error of its result."""
    started = time.monotonic()
    host: list[str] = []
    lowered: Program | None = None
    try:
        code = code_of(program)
        lowered = differential.lowered(code)
        host = differential.host_operations(lowered)
        error = _difference(program, lowered, code, seeds)
    except Exception as problem:  # the next program must run
        error = " ".join(f"{type(problem).__name__}: {problem}".split())
    seconds = round(time.monotonic() - started, 2)
    return Result(
        program.name,
        program.family,
        lowered is not None,
        tuple(sorted(set(host))),
        error[:_ERROR_CHARACTERS],
        seconds,
    )


def _difference(
    program: stablehlo_data.Program, lowered: Program, code: bytes, seeds: int | None
) -> str:
    findings = verify(lowered)
    if findings:
        return f"{len(findings)} findings, first: {findings[0]}"
    (found,) = differential.emulated(lowered, code, [[]])
    wanted = differential.on_cpu(code, [])
    for got, want in zip(found[::2], wanted[::2], strict=True):
        differential.assert_close(got, want, tolerance_of(program))
    if seeds is None:
        return ""
    finished = differential.completed(lowered)
    for order in orders(seeds):
        (again,) = differential.emulated(finished, code, [[]], order=order)
        if any(a.tobytes() != b.tobytes() for a, b in zip(again, found, strict=True)):
            return f"other bits in {order}"
    return ""


def summary(results: Sequence[Result]) -> dict[str, int]:
    """Counts of all programs."""
    return {
        "eligible": len(results),
        "without_host": sum(each.lowered and not each.host for each in results),
        "agreeing": sum(not each.error for each in results),
        "agreeing_without_host": sum(not each.host and not each.error for each in results),
    }


def table(results: Sequence[Result]) -> str:
    """Counts by operation, then what is wrong."""
    columns = ("eligible", "without_host", "agreeing")
    rows = [f"{'operation':32s}" + "".join(f"{name:>14s}" for name in columns)]
    families = Counter(result.family for result in results)
    for family in (*sorted(families), ""):
        counts = summary([each for each in results if family in (each.family, "")])
        rows.append(f"{family or 'all':32s}" + "".join(f"{counts[name]:14d}" for name in columns))
    rows += [f"host {each.name}: {', '.join(each.host)}" for each in results if each.host]
    rows += [f"wrong {each.name}: {each.error}" for each in results if each.error]
    return "\n".join(rows)


def main(arguments: Sequence[str]) -> None:
    if arguments[1:]:
        raise app.UsageError(f"unexpected arguments {arguments[1:]}")
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_enable_x64", True)
    started = time.monotonic()
    results = []
    with Path(flags.FLAGS.out or os.devnull).open("w", buffering=1) as out:
        for program in programs(flags.FLAGS.match, flags.FLAGS.skip):
            results.append(run_program(program, flags.FLAGS.seeds))
            out.write(json.dumps(asdict(results[-1])) + "\n")
    print(table(results))
    print(f"{time.monotonic() - started:.1f} s")
    if flags.FLAGS.summary:
        Path(flags.FLAGS.summary).write_text(json.dumps(summary(results), indent=2) + "\n")


def define_flags() -> None:
    """The flags; other programs that tests import beside this one have some of them too."""
    flags.DEFINE_string("match", "*", "Glob of program names.")
    flags.DEFINE_string("skip", "", "Glob of program names to leave out.")
    flags.DEFINE_integer("seeds", None, "Dataflow orders to try; none: program order only.")
    flags.DEFINE_string("out", None, "JSON-lines file for the results.")
    flags.DEFINE_string("summary", None, "JSON file for the counts.")


if __name__ == "__main__":
    define_flags()
    app.run(main)
