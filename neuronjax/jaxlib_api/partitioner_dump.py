"""What XLA writes into files of its SPMD partitioner's result."""

from __future__ import annotations

import glob
import os

from neuronjax import protobuf

MANUAL_COMPUTATION = "xla.sdy.inlinable_manual_computation_body"
"""How names of functions begin that hold the body of a ``shard_map``. With another name they stay
functions: collectives in several of them are not combined, nothing else changes."""

_HLO_MODULE = 1
"""Field of HloProto: the HloModuleProto."""


def debug_options(folder: str) -> dict[str, str | bool]:
    """XLA's debug options that make one compile dump the partitioner's result into ``folder``.

    Relies on the pass being called ``spmd-partitioning``. With another name: dump every pass
    (``xla_dump_hlo_pass_re=".*"``) and look which it is.
    """
    return {
        "xla_dump_to": folder,
        "xla_dump_hlo_pass_re": "spmd-partitioning",
        "xla_dump_hlo_as_proto": True,
    }


def files(folder: str) -> list[str]:
    """The dumped modules, one path for each compile; relies on XLA's names of files."""
    return glob.glob(os.path.join(glob.escape(folder), "*after_spmd-partitioning*.pb"))


def hlo_module(path: str) -> bytes:
    """The serialized HloModuleProto of a dumped module; empty if the file is damaged."""
    with open(path, "rb") as file:
        return protobuf.first(file.read(), _HLO_MODULE)
