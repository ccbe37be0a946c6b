"""Trainings that cannot be shared out as asked are refused before anything is compiled."""

from dataclasses import replace
from typing import Any

import jax
import optax
import pytest

from launch.errors import MeshError
from launch.source import byte_level
from launch.training.objectives import text_batch
from launch.training.parallelism import Parallelism
from launch.training.step import Training, make_training
from models.decoder.config import DecoderConfig
from models.layers.moe import Experts

ROWS, LENGTH = 16, 16
DENSE = DecoderConfig(
    vocab_size=32, num_layers=2, dim=32, hidden_dim=32, num_heads=4, num_kv_heads=2, head_dim=8,
    max_seq_len=LENGTH, initializer_range=0.1,
)  # fmt: skip
CAPACITY = replace(DENSE, experts=Experts(4, 2, 16, capacity_factor=1.0))

STAGES, MICRO = "pipeline_parallel_size", "pipeline_parallel_num_microbatches"
CONTEXT = "context_parallel_size"


def make(config: DecoderConfig, parallelism: Parallelism, devices: list[jax.Device]) -> Training:
    parallelism = parallelism.fitted(config)
    return make_training(
        byte_level(DENSE).model._replace(config=config),
        optax.adamw(3e-3),
        parallelism,
        mesh=parallelism.mesh(devices),
        batch=text_batch(ROWS, LENGTH),
        clip_norm=1.0,
        seed=0,
    )


@pytest.mark.parametrize(
    ("config", "settings", "message"),
    [
        (DENSE, {STAGES: 4}, "2 blocks cannot be shared out over 4 chunks"),
        (DENSE, {STAGES: 2, "pipeline_cuts": "2"}, "does not cut 2 blocks into 2 chunks"),
        (DENSE, {STAGES: 2, MICRO: 5}, "16 rows of a core cannot be split into micro-batches"),
        (
            DENSE,
            {CONTEXT: 8, "context_parallel_method": "all_to_all"},
            "share the 4 query heads of a core",
        ),
        (CAPACITY, {CONTEXT: 2}, "count the tokens of whole rows"),
    ],
)
def test_what_cannot_be_shared_is_refused(
    config: DecoderConfig,
    settings: dict[str, Any],
    message: str,
    neuron_devices: list[jax.Device],
) -> None:
    with pytest.raises(MeshError, match=message):
        make(config, Parallelism(**settings), neuron_devices)
