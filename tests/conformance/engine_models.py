"""Models on engines in many orders: `python -m tests.conformance.engine_models --out=FILE`.

Every model of tests/lower/model_cases.py, on one core and on eight, against XLA:CPU; then again in
dataflow order with --seeds seeds and with transfers that end as late as they may, which must give
the same bits without a race. One line for each; the file has them as JSON.
"""

from __future__ import annotations

import json
import os
import time
import traceback
from pathlib import Path

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
from absl import app, flags

from neuronjax.host.client import HostClient
from tests.lower.model_cases import MODELS, MORE, check, on_eight_cores, on_one_core


def main(_: list[str]) -> None:
    host = HostClient(8)
    rows = []
    for name in (*MODELS, *MORE):
        if flags.FLAGS.match not in name:
            continue
        for cores in (1, 8):
            start = time.monotonic()
            try:
                built = (
                    on_one_core(name) if cores == 1 else on_eight_cores(name, jax.devices(), host)
                )
                row = {"model": name, "error": "", **check(built, flags.FLAGS.seeds)}
            except Exception as error:
                traceback.print_exc()
                row = {
                    "model": name,
                    "ranks": cores,
                    "error": f"{type(error).__name__}: {error}"[:300],
                }
            rows.append(row)
            state = row["error"] or f"same bits in {row['orders']} orders"
            print(
                f"{name:<24} {cores} cores {time.monotonic() - start:7.1f} s  {state}", flush=True
            )
    if flags.FLAGS.out:
        Path(flags.FLAGS.out).write_text(json.dumps(rows, indent=1) + "\n")
    if any(row["error"] for row in rows):
        raise SystemExit(1)


def define_flags() -> None:
    """The flags; other programs that tests import beside this one have some of them too."""
    flags.DEFINE_integer("seeds", 20, "Dataflow orders to try.", lower_bound=0)
    flags.DEFINE_string("match", "", "Only models whose name contains this.")
    flags.DEFINE_string("out", None, "JSON file for the results.")


if __name__ == "__main__":
    define_flags()
    app.run(main)
