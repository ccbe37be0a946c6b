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


def debug_options(folder: str) -> dict[str, str | bool | int]:
    """XLA's debug options that make one compile dump the partitioner's result into ``folder``,
    whatever the environment's ``XLA_FLAGS`` say of dumps and passes.

    Relies on the pass being called ``spmd-partitioning``. With another name: dump every pass
    (``xla_dump_hlo_pass_re=".*"``) and look which it is.
    """
    return {
        "xla_dump_to": folder,
        "xla_dump_hlo_pass_re": "spmd-partitioning",
        "xla_dump_hlo_as_proto": True,
        "xla_dump_hlo_as_text": False,
        "xla_dump_hlo_as_url": False,
        "xla_dump_hlo_module_re": "",
        "xla_dump_hlo_pipeline_re": "",
        "xla_dump_max_hlo_modules": -1,
        "xla_dump_compress_protos": False,
        "xla_disable_hlo_passes": "",
    }


def files(folder: str) -> list[str]:
    """The dumped modules, one path for each compile; relies on XLA's names of files."""
    pattern = os.path.join(glob.escape(folder), "**", "*after_spmd-partitioning*.pb")
    return glob.glob(pattern, recursive=True)


def hlo_module(path: str) -> bytes:
    """The serialized HloModuleProto of a dumped module; empty if the file is damaged."""
    with open(path, "rb") as file:
        return protobuf.first(file.read(), _HLO_MODULE)
