"""The engine program behind a function of JAX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from neuronjax.errors import ArgumentMismatchError
from neuronjax.jaxlib_api.executables import fingerprint
from neuronjax.pjrt.plugin import tables
from neuronjax.program import text
from neuronjax.torch import as_jax


def program_text(function: Callable[..., Any], *arguments: Any, **keywords: Any) -> str:
    """The engine program of ``function(*arguments, **keywords)`` on platform ``neuron``.

    With ``NEURONJAX_EXECUTOR=engine`` this program computes the values; otherwise it is lowered
    now. The HLO of one core, as on JAX's other platforms, is
    ``jax.jit(function).lower(*arguments).compile().as_text()``.

    Args:
      function: any function, jitted or not; or what ``jax.jit(f).lower(...).compile()`` returned,
        without arguments.
      arguments: trees of arrays on the platform, or of ``jax.ShapeDtypeStruct``.

    Raises:
      ArgumentMismatchError: it was not compiled for the platform, or its client is gone.
      UnsupportedProgramError, SbufOverflowError, PsumOverflowError: it cannot be lowered.
    """
    compiled: Any = function
    if not isinstance(function, jax.stages.Compiled):
        function, arguments, _ = as_jax(function, arguments)
        jitted: Any = function if hasattr(function, "lower") else jax.jit(function)
        compiled = jitted.lower(*arguments, **keywords).compile()
    name = fingerprint(compiled)
    for table in tables():
        for state in table.plugin.clients:
            program = state.client.engine_program(name)
            if program is not None:
                return text.format(program)
    raise ArgumentMismatchError(
        "no client of platform neuron knows this program; pass a function with arguments on this "
        "platform, or what jax.jit(f).lower(...).compile() returned for them in this process."
    )
