"""Times the kernels of NKIBench (zhang677/AccelOpt) on Trn1 beside what was measured there.

  python -m tests.conformance.nki_bench --accelopt=DIR [--only=NAME,NAME]

DIR is a checkout. Each kernel runs at its full shape without values, which takes up to minutes.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from absl import app, flags

from neuronjax import nki
from neuronjax.nki.gym.evaluation import evaluate
from tests.conformance.nki_examples import load_module

_ACCELOPT = flags.DEFINE_string("accelopt", None, "Checkout of AccelOpt.", required=True)
_ONLY = flags.DEFINE_list("only", [], "Names of kernels.")
_PUBLISHED = "experiments/full_complete_local/profile_results.csv"
_SHARES = ("scalar_engine_active_time_percent", "vector_engine_active_time_percent")
_HBM = ("hbm_read_bytes", "hbm_write_bytes")


def _zeros(loc: float = 0.0, scale: float = 1.0, size: Any = None) -> np.ndarray:
    return np.broadcast_to(np.zeros((), np.float32), size)


def _rows(checkout: Path) -> Iterator[tuple[str, float, float, str]]:
    """Each kernel, its time, the published one, and shares and MiB beside published ones."""
    with (checkout / _PUBLISHED).open() as file:
        published = list(csv.DictReader(file))
    for row in sorted(published, key=lambda row: row["problem"]):
        if _ONLY.value and row["problem"] not in _ONLY.value:
            continue
        kernel, task = (
            load_module(checkout / "NKIBench" / folder / Path(row[column]).name)
            for folder, column in (("kernels", "kernel"), ("reference", "task"))
        )
        with patch("numpy.random.normal", _zeros):
            arrays = task.transform_to_nki_inputs(task.get_inputs())
        judged = evaluate(kernel.kernel, None, arrays, target="trn1.32xlarge")
        assert judged.times is not None, judged.reason
        measured, counters = json.loads(row["profile"]), judged.counters
        parts = [f"{counters[name]:.2f} / {measured[name]:.2f}" for name in _SHARES]
        parts += [f"{counters[name] / 2**20:,.0f} / {measured[name] / 2**20:,.0f}" for name in _HBM]
        yield row["problem"], judged.times.kernel_ns / 1e6, measured["latency"], " | ".join(parts)


def main(arguments: Sequence[str]) -> None:
    if len(arguments) > 1:
        raise app.UsageError("Pass --accelopt.")
    nki.install()
    errors = []
    for name, ours, measured, parts in _rows(Path(_ACCELOPT.value)):
        errors.append(abs(ours / measured - 1))
        print(
            f"| {name} | {ours:.3f} / {measured:.3f} | {ours / measured:.2f} | {parts} |",
            flush=True,
        )
    print(f"mean error {np.mean(errors):.1%} of {len(errors)}")


if __name__ == "__main__":
    app.run(main)
