# package: google-tunix
"""Tunix: its trainer fine-tunes a small Llama with LoRA (through qwix), as its guide does."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import qwix
from flax import nnx
from tunix.models.llama3 import model as llama
from tunix.sft import peft_trainer, utils

config = llama.ModelConfig(
    num_layers=2, vocab_size=128, embed_dim=64, hidden_dim=128, num_heads=4, head_dim=16,
    num_kv_heads=2, rope_theta=10_000, norm_eps=1e-5,
)  # fmt: skip
base = llama.Llama3(config, rngs=nnx.Rngs(0))
mesh = jax.make_mesh((2, 2), ("fsdp", "tp"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
provider = qwix.LoraProvider(module_path=".*q_proj|.*v_proj|.*gate_proj", rank=4, alpha=8.0)


def inputs_of(example):
    mask = example.input_tokens != 0
    return {
        "input_tokens": example.input_tokens,
        "input_mask": example.input_mask,
        "positions": utils.build_positions_from_mask(mask),
        "attention_mask": utils.make_causal_attn_mask(mask),
    }


rng = np.random.default_rng(0)
with mesh:
    sample = jnp.ones((2, 8), jnp.int32)
    arguments = (sample, jnp.arange(8)[None].repeat(2, 0), None, jnp.ones((2, 8, 8), bool))
    model = qwix.apply_lora_to_model(base, provider, *arguments, rngs=nnx.Rngs(1))
    training = peft_trainer.TrainingConfig(eval_every_n_steps=100, max_steps=5)
    trainer = peft_trainer.PeftTrainer(model, optax.adamw(1e-2), training).with_gen_model_input_fn(
        inputs_of
    )
    examples = [
        peft_trainer.TrainingInput(
            input_tokens=rng.integers(1, 128, (4, 16)), input_mask=np.ones((4, 16), bool)
        )
        for _ in range(5)
    ]
    trainer.train(examples)
    tokens = jnp.asarray(examples[0].input_tokens)
    positions = jnp.arange(16)[None].repeat(4, 0)
    mask = jnp.tril(jnp.ones((16, 16), bool))[None].repeat(4, 0)
    logits, _ = model(tokens, positions, None, mask)
print(json.dumps([float(value) for value in np.asarray(logits[0, -1, :8], np.float64)]))
