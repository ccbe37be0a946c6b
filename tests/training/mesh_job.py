"""A job for one process or several, on eight cores in all: short trainings on many meshes."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from launch.processes import join_processes
from launch.source import Source, byte_level, from_fields
from launch.trainer import train
from tests.launch.programs import CONFIG, config

SCAN: dict[str, Any] = {"scan_layers": True}
_PAIRS: dict[str, Any] = {"fully_sharded_size": 2, "tensor_parallel_size": 2}
_DENSE = byte_level(replace(CONFIG, num_layers=4))
_MIXTRAL = {
    "architectures": ["MixtralForCausalLM"],
    "model_type": "mixtral",
    "vocab_size": 256,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 32,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
}
_EXPERTS = from_fields(_MIXTRAL, "a small Mixtral")


class Case(NamedTuple):
    """A mesh: fields of the run's configuration, and a model."""

    fields: dict[str, Any]
    source: Source = _DENSE


def _pipeline(stages: int, **fields: Any) -> Case:
    return Case({"pipeline_parallel_size": stages, **fields})


MESHES: dict[str, Case] = {
    "data": Case({}),
    "fully sharded": Case({"fully_sharded_size": 8}),
    "data, fully sharded, tensor": Case(_PAIRS),
    "data, fully sharded, tensor, scan": Case(_PAIRS | SCAN),
    "ring, scan": Case({"context_parallel_size": 8} | SCAN),
    "all-to-all": Case({"context_parallel_size": 4, "context_parallel_method": "all_to_all"}),
    "experts": Case({"expert_parallel_size": 8}, _EXPERTS),
    "experts, fully sharded, scan": Case(
        {"expert_parallel_size": 4, "fully_sharded_size": 2} | SCAN, _EXPERTS
    ),
    "experts with a capacity": Case(
        {"expert_parallel_size": 4, "expert_capacity_factor": 1.0}, _EXPERTS
    ),
    "GPipe": _pipeline(4, pipeline_schedule="gpipe"),
    "1F1B, tensor": _pipeline(2, tensor_parallel_size=2),
    "1F1B, fully sharded, scan": _pipeline(2, fully_sharded_size=4, **SCAN),
    "interleaved": _pipeline(2, virtual_pipeline_parallel_size=2),
}


def run(name: str, folder: Path) -> None:
    """Trains three steps on a mesh of the table; the metrics go to FOLDER/NAME."""
    fields, source = MESHES[name]
    settings = {"batch_size": 16, "steps": 3, "checkpoint_every": 100, "eval_every": 100}
    assert train(source, config(folder / name, **settings, **fields)) == 0


def main() -> None:
    """FOLDER NAME...: trains on these meshes, every process its part."""
    join_processes()
    folder, *names = sys.argv[1:]
    for name in names:
        run(name, Path(folder))


if __name__ == "__main__":
    main()
