# package: google-tunix
"""Tunix: preference training (DPO) of a small Llama beside its reference, over a mesh."""

import json

import jax
import numpy as np
import optax
from flax import nnx
from tunix.models.llama3 import model as llama
from tunix.sft.dpo import dpo_trainer

config = llama.ModelConfig(
    num_layers=2, vocab_size=128, embed_dim=64, hidden_dim=128, num_heads=4, head_dim=16,
    num_kv_heads=2, rope_theta=10_000, norm_eps=1e-5,
)  # fmt: skip
mesh = jax.make_mesh((2, 2), ("fsdp", "tp"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
rng = np.random.default_rng(0)


def batch():
    prompts, chosen, rejected = (rng.integers(1, 128, (4, 8)) for _ in range(3))
    mask = np.ones((4, 8), bool)
    return dpo_trainer.TrainingInput(
        prompt_ids=prompts, prompt_mask=mask, chosen_ids=chosen, chosen_mask=mask,
        rejected_ids=rejected, rejected_mask=mask,
    )  # fmt: skip


with mesh:
    policy, reference = (llama.Llama3(config, rngs=nnx.Rngs(0)) for _ in range(2))
    training = dpo_trainer.DPOTrainingConfig(eval_every_n_steps=100, max_steps=5, beta=0.1)
    trainer = dpo_trainer.DPOTrainer(policy, reference, optax.adamw(1e-3), training)
    trainer.train([batch() for _ in range(5)])
    tokens = batch().prompt_ids
    positions = np.arange(8)[None].repeat(4, 0)
    mask = np.tril(np.ones((8, 8), bool))[None].repeat(4, 0)
    logits, _ = policy(tokens, positions, None, mask)
print(json.dumps([float(value) for value in np.asarray(logits[0, -1, :8], np.float64)]))
