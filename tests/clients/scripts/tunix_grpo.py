# package: google-tunix
"""Tunix: GRPO on a small Llama, which samples, is rewarded and learns, over a mesh."""

import json

import jax
import numpy as np
import optax
from flax import nnx
from tunix.models.llama3 import model as llama
from tunix.rl import rl_cluster
from tunix.rl.grpo import grpo_learner
from tunix.rl.rollout.base_rollout import RolloutConfig
from tunix.tests.test_common import MockVocab

WORDS = MockVocab()
config = llama.ModelConfig(
    num_layers=2, vocab_size=WORDS.GetPieceSize(), embed_dim=64, hidden_dim=128, num_heads=4,
    head_dim=16, num_kv_heads=2, rope_theta=10_000, norm_eps=1e-5,
)  # fmt: skip
mesh = jax.make_mesh((2, 2), ("fsdp", "tp"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
rewards: list[float] = []


def length(prompts, completions, **_):
    given = [float(len(completion)) for completion in completions]
    rewards.extend(given)
    return given


with mesh:
    policy, reference = (llama.Llama3(config, rngs=nnx.Rngs(0)) for _ in range(2))
    cluster = rl_cluster.RLCluster(
        actor=policy,
        reference=reference,
        tokenizer=WORDS,
        cluster_config=rl_cluster.ClusterConfig(
            role_to_mesh=dict.fromkeys(rl_cluster.Role, mesh),
            training_config=rl_cluster.RLTrainingConfig(
                actor_optimizer=optax.adamw(1e-3), eval_every_n_steps=100, max_steps=3
            ),
            rollout_config=RolloutConfig(
                max_tokens_to_generate=8, max_prompt_length=8, kv_cache_size=32
            ),
        ),
    )
    learner = grpo_learner.GRPOLearner(
        rl_cluster=cluster,
        algo_config=grpo_learner.GRPOConfig(num_generations=2),
        reward_fns=length,
    )
    prompts = np.array(["hello there", "my brother"])
    learner.train([{"prompts": prompts}] * 3)
    tokens = np.arange(1, 9)[None].repeat(2, 0)
    positions = np.arange(8)[None].repeat(2, 0)
    mask = np.tril(np.ones((8, 8), bool))[None].repeat(2, 0)
    logits, _ = policy(tokens, positions, None, mask)
last = np.asarray(logits[0, -1, :8], np.float64)
print(json.dumps([*rewards, *(float(value) for value in last)]))
