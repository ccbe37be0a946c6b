"""A published training as a record, its flags, and its twin in small."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from launch.errors import SettingsError
from launch.presets.architectures import Fields

CORES: Mapping[str, int] = {"trn1.32xlarge": 32, "trn2.48xlarge": 64}
"""NeuronCores of an instance; logical ones, of two, on trn2."""

TINY_CORES = (8, 32)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A training of NxD Training's conf/ or of optimum-neuron's examples."""

    model: Fields
    instances: int
    target: str = "trn1.32xlarge"
    tensor: int
    pipeline: int = 1
    context: int = 1
    global_batch: int  # sequences of a step; each core group takes one at a time
    seq_len: int = 4096
    learning_rate: float
    schedule: str = "cosine"
    warmup_steps: int
    steps: int = 10_000
    precision: str = "mixed_precision"
    recompute: str = "selective"
    weight_decay: float = 0.01
    note: str = ""  # how it departs from what was published

    @property
    def cores(self) -> int:
        """Cores of all instances."""
        return self.instances * CORES[self.target]

    def settings(self) -> dict[str, Any]:
        """Values of the trainer's flags by name."""
        model = self.tensor * self.pipeline * self.context
        data = self.cores // model
        return {
            "tensor_parallel_size": self.tensor,
            "pipeline_parallel_size": self.pipeline,
            "context_parallel_size": self.context,
            "data_parallel_size": data,
            "gradient_accumulation_steps": self.global_batch // data,
            "zero_1": True,
            "sequence_parallel": True,
            "scan_layers": True,
            "recompute": self.recompute,
            "batch_size": self.global_batch,
            "seq_len": self.seq_len,
            "learning_rate": self.learning_rate,
            "schedule": self.schedule,
            "warmup_steps": self.warmup_steps,
            "steps": self.steps,
            "precision": self.precision,
            "optimizer": "adamw",
            "weight_decay": self.weight_decay,
            "clip_norm": 1.0,
        }

    def tiny(self, cores: int) -> "Recipe":
        """The twin for 8 or 32 cores: the same kinds of parallelism, a small model, few steps.

        Raises SettingsError for another number.
        """
        if cores not in TINY_CORES:
            raise SettingsError(
                f"--scale=tiny is for 8 or 32 cores, and there are {cores}. Set NEURONJAX_TARGET "
                "and NEURON_RT_NUM_CORES, or XLA_FLAGS on cpu, accordingly."
            )
        tensor = _at_most(self.tensor, 2 if cores == TINY_CORES[0] else 4)
        pipeline, context = _at_most(self.pipeline, 2), _at_most(self.context, 2)
        data = cores // (tensor * pipeline * context)
        kv_heads = self.model["num_key_value_heads"]
        shared = 2 if self.tensor > kv_heads else 1
        model = dict(self.model) | {
            "vocab_size": 256,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 2 * pipeline,
            "num_attention_heads": 2 * tensor,
            "num_key_value_heads": max(tensor // shared, 1),
            "head_dim": 8,
            "max_position_embeddings": 64,
        }
        if "num_local_experts" in model:
            model["num_local_experts"] = 4
        if model.get("sliding_window"):
            model["sliding_window"] = 32
        return replace(
            self,
            model=model,
            target=f"{cores} cores",
            instances=1,
            tensor=tensor,
            pipeline=pipeline,
            context=context,
            global_batch=4 * data,
            seq_len=64,
            learning_rate=3e-3,
            warmup_steps=2,
            steps=8,
        )


def _at_most(size: int, limit: int) -> int:
    return math.gcd(size, limit)
