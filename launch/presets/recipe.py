"""A published training as a record, its flags, and its twin in small."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

CORES: Mapping[str, int] = {"trn1.32xlarge": 32, "trn2.48xlarge": 64}
"""NeuronCores of an instance; logical ones, of two, on trn2."""

TINY_CORES: Mapping[str, int] = {"tiny": 8, "tiny32": 32}
"""Twins by the value of --scale -> their cores."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A training of NxD Training's conf/ or of optimum-neuron's examples."""

    model: Mapping[str, Any]  # fields of config.json
    instances: int
    target: str = "trn1.32xlarge"
    tensor: int
    pipeline: int = 1
    context: int = 1
    global_batch: int  # sequences of a step; each core group takes one at a time
    seq_len: int = 4096
    learning_rate: float
    final_rate: float = 0.0  # learning rate at the end
    schedule: str = "cosine"
    warmup_steps: int
    steps: int = 10_000
    precision: str = "mixed_precision"
    recompute: str = "selective"
    weight_decay: float = 0.01
    beta2: float = 0.999
    task: str | None = None  # of launch.finetune; None = text, with launch.train
    more: Mapping[str, Any] = field(default_factory=dict)  # flags that few presets have
    twin_cores: int | None = None  # of a twin, which needs no whole instance
    note: str = ""  # how it departs from what was published

    @property
    def cores(self) -> int:
        """Cores of all instances, or of a twin."""
        return self.twin_cores or self.instances * CORES[self.target]

    @property
    def is_tiny(self) -> bool:
        """Whether the recipe is a small twin of what was published."""
        return self.twin_cores is not None

    def settings(self) -> dict[str, Any]:
        """Values of the trainer's flags by name."""
        data = self.cores // (self.tensor * self.pipeline * self.context)
        rows = self.global_batch // data  # of a data-parallel group, one at a time
        is_pipeline = self.pipeline > 1
        return {
            "tensor_parallel_size": self.tensor,
            "pipeline_parallel_size": self.pipeline,
            "context_parallel_size": self.context,
            "data_parallel_size": data if self.is_tiny else None,
            "gradient_accumulation_steps": 1 if is_pipeline else rows,
            "pipeline_parallel_num_microbatches": rows if is_pipeline else None,
            "zero_1": True,
            "sequence_parallel": True,
            "recompute": self.recompute,
            "batch_size": self.global_batch,
            "seq_len": self.seq_len,
            "learning_rate": self.learning_rate,
            "final_learning_rate": self.final_rate / self.learning_rate,
            "schedule": self.schedule,
            "warmup_steps": self.warmup_steps,
            "steps": self.steps,
            "precision": self.precision,
            "optimizer": "adamw",
            "weight_decay": self.weight_decay,
            "adam_beta2": self.beta2,
            "clip_norm": 1.0,
            **self.more,
        }

    def environment(self) -> dict[str, str]:
        """Variables that make the platform `neuron` what this was published for: for a twin the
        first cores of one instance."""
        cores = {"NEURON_RT_NUM_CORES": str(self.twin_cores)} if self.is_tiny else {}
        return {"NEURONJAX_TARGET": self.target, **cores}

    def tiny(self, scale: str) -> "Recipe":
        """The twin of a name in TINY_CORES: the same kinds of parallelism, a small model, few
        steps."""
        cores = TINY_CORES[scale]
        tensor = _at_most(self.tensor, 2 if cores == 8 else 4)
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
            twin_cores=cores,
            instances=1,
            tensor=tensor,
            pipeline=pipeline,
            context=context,
            global_batch=4 * data,
            seq_len=64,
            learning_rate=3e-3,
            final_rate=3e-4,
            warmup_steps=2,
            steps=8,
        )


def _at_most(size: int, limit: int) -> int:
    return math.gcd(size, limit)
