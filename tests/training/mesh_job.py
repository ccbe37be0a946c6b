"""A job for one process or several, on eight cores in all: short trainings on many meshes."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from launch.processes import join_processes
from launch.source import byte_level
from launch.trainer import train
from tests.launch.programs import CONFIG, config

SCAN: dict[str, Any] = {"scan_layers": True}
_PAIRS: dict[str, Any] = {"fully_sharded_size": 2, "tensor_parallel_size": 2}

MESHES: dict[str, dict[str, Any]] = {
    "data": {},
    "fully sharded": {"fully_sharded_size": 8},
    "data, fully sharded, tensor": _PAIRS,
    "data, fully sharded, tensor, scan": _PAIRS | SCAN,
    "ring, scan": {"context_parallel_size": 8} | SCAN,
    "all-to-all": {"context_parallel_size": 4, "context_parallel_method": "all_to_all"},
}
"""Name -> fields of ``Parallelism``."""

_MODEL = replace(CONFIG, num_layers=4)


def run(name: str, folder: Path) -> None:
    """Trains three steps on a mesh of the table; the metrics go to FOLDER/NAME."""
    settings = {"batch_size": 16, "steps": 3, "checkpoint_every": 100, "eval_every": 100}
    assert train(byte_level(_MODEL), config(folder / name, **settings, **MESHES[name])) == 0


def main() -> None:
    """FOLDER: trains on all meshes, every process its part."""
    join_processes()
    for name in MESHES:
        run(name, Path(sys.argv[1]))


if __name__ == "__main__":
    main()
