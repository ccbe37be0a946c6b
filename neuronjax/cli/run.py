"""``neuronjax run``: runs a script on the emulated machine, with `import nki`."""

from __future__ import annotations

import argparse

import jax

from neuronjax import options
from neuronjax.cli import scripts
from neuronjax.machine.machine import Machine

RAN, RAISED = 0, 2
"""Exit codes."""

DESCRIPTION = """\
Runs a script on the emulated machine, as `JAX_PLATFORMS=neuron python SCRIPT` does. Kernels in it
that import `nki`, or `neuronxcc.nki` for NKI 0.x, find neuronjax.nki, unless another package of
that name is installed.

Example: neuronjax run --target=trn2.48xlarge softmax.py
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--target", help="machine, such as trn1.32xlarge (default: as configured)")
    scripts.add_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Runs a script in this process, which should end soon after."""
    scripts.check(arguments.script, arguments.module)
    if arguments.target is not None:
        Machine.create(arguments.target)
        options.pin(target=arguments.target)
    jax.config.update("jax_platforms", "neuron,cpu")
    outcome = scripts.run(arguments.script, arguments.arguments, arguments.module, 0)
    return RAN if outcome.error is None else RAISED
