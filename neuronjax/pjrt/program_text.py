"""The engine program behind one of JAX's compiled functions."""

from __future__ import annotations

import jax

from neuronjax.errors import ArgumentMismatchError
from neuronjax.jaxlib_api.executables import fingerprint
from neuronjax.pjrt.plugin import tables
from neuronjax.program import text


def program_text(compiled: jax.stages.Compiled) -> str:
    """The engine program of ``compiled``, which ``jax.jit(f).lower(...).compile()`` returned.

    With ``NEURONJAX_EXECUTOR=engine`` this program computes the values; otherwise it is lowered
    now. ``compiled.as_text()`` is the HLO of one core, as on JAX's other platforms.

    Raises:
      ArgumentMismatchError: it was not compiled for the platform, or its client is gone.
      UnsupportedProgramError, SbufOverflowError, PsumOverflowError: it cannot be lowered.
    """
    name = fingerprint(compiled)
    for table in tables():
        for state in table.plugin.clients:
            program = state.client.engine_program(name)
            if program is not None:
                return text.format(program)
    raise ArgumentMismatchError(
        "no client of platform neuron knows this executable; pass the result of "
        "jax.jit(f).lower(...).compile() for arguments on this platform, from this process."
    )
