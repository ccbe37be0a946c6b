"""NKI kernels as calls in programs hold them: `AwsNeuronCustomNativeKernel`'s configuration.

It is base64 of JSON with ``func_name``, ``grid``, ``has_collectives`` and ``klir_binary`` (release
notes of Neuron's jax component). The compiler's binary is not public: here it is the text of the
kernel's program.
"""

from __future__ import annotations

import base64
import functools
import json
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from neuronjax.errors import UnsupportedProgramError
from neuronjax.program import text
from neuronjax.program.program import Program

_FORMAT = "neuronjax-program"


@dataclass(frozen=True, eq=False)
class SerializedKernel:
    """A kernel and what its call has to know of it."""

    program: Program
    #: Names of the tensors that a call returns, in order.
    results: tuple[str, ...]
    grid: tuple[int, ...] = ()
    #: Tensor -> `file:line` that declared it.
    declared: Mapping[str, str] = field(default_factory=dict)

    def configuration(self) -> str:
        """The call's ``backend_config``."""
        code = zlib.compress(text.format(self.program).encode())
        config = {
            "func_name": self.program.name,
            "grid": list(self.grid),
            "has_collectives": self.program.ranks > 1,
            "klir_binary": {"format": _FORMAT, "binary": base64.b64encode(code).decode()},
            "results": list(self.results),
            "declared": dict(self.declared),
        }
        return base64.b64encode(json.dumps(config).encode()).decode()


def read(configuration: str, suffix: str = "") -> SerializedKernel:
    """The kernel of a call; `suffix` is added to the names of its buffers and registers.

    Raises:
      UnsupportedProgramError: its binary is one for the device, or it is none.
    """
    try:
        config = json.loads(base64.b64decode(configuration, validate=True))
        binary = config["klir_binary"]
        if not isinstance(binary, dict) or binary.get("format") != _FORMAT:
            raise UnsupportedProgramError(
                f"runs the NKI kernel {config.get('func_name')!r} as compiled for a device, which "
                "only the device can; call the kernel's source here, with neuronjax.nki"
            )
        code = zlib.decompress(base64.b64decode(binary["binary"], validate=True)).decode()
        return _deserialized(config, _renamed(code, suffix), suffix)
    except (ValueError, KeyError, TypeError, AttributeError, zlib.error) as error:
        raise UnsupportedProgramError(
            "needs an NKI kernel in backend_config, as base64 of JSON with func_name, grid, "
            f"has_collectives and klir_binary ({type(error).__name__}: {error}); call a kernel of "
            "neuronjax.nki within jax.jit, which makes the call"
        ) from None


@functools.lru_cache(maxsize=64)
def known(configuration: str) -> SerializedKernel:
    """The kernel that `read` gives, read once for all calls of it."""
    return read(configuration)


def _deserialized(config: Mapping[str, Any], code: str, suffix: str) -> SerializedKernel:
    return SerializedKernel(
        program=text.parse(code),
        results=tuple(name + suffix for name in config["results"]),
        grid=tuple(config["grid"]),
        declared={name + suffix: line for name, line in config["declared"].items()},
    )


_NAMES = re.compile(r'"(?:[^"\\]|\\.)*"|[%$]\w+')
"""Strings, in which nothing is a name, and names of buffers and registers."""


def _renamed(code: str, suffix: str) -> str:
    if not suffix:
        return code
    return _NAMES.sub(lambda word: word[0] if word[0][0] == '"' else word[0] + suffix, code)
