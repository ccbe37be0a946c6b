"""The published trainings by name.

NxD Training (github.com/aws-neuron/neuronx-distributed-training, examples/conf) and optimum-neuron
(github.com/huggingface/optimum-neuron, examples/training). All use sequence parallelism, a
micro-batch of one sequence and AdamW with FP32 state, and all but LoRA ZeRO-1.
"""

from collections.abc import Mapping
from dataclasses import replace

from launch.presets.recipe import Recipe
from models.published.table import PUBLISHED

LLAMA_2_70B = PUBLISHED["meta-llama/Llama-2-70b-hf"]
LLAMA_2_7B = PUBLISHED["meta-llama/Llama-2-7b-hf"]
LLAMA_3_1_405B = PUBLISHED["meta-llama/Llama-3.1-405B"]
LLAMA_3_1_70B = PUBLISHED["meta-llama/Llama-3.1-70B"]
LLAMA_3_1_8B = PUBLISHED["meta-llama/Llama-3.1-8B"]
LLAMA_3_70B = PUBLISHED["meta-llama/Meta-Llama-3-70B"]
LLAMA_3_8B = PUBLISHED["meta-llama/Meta-Llama-3-8B"]
MISTRAL_7B = PUBLISHED["mistralai/Mistral-7B-v0.1"]
MIXTRAL_8X7B = PUBLISHED["mistralai/Mixtral-8x7B-v0.1"]
QWEN_3_8B = PUBLISHED["Qwen/Qwen3-8B"]

MLP_TOO = "recomputes whole blocks; the original recomputes attention scores and MLPs"
LENGTH = "4096 positions; the original does not say"

_LLAMA_3_8B = Recipe(
    model=LLAMA_3_8B, instances=4, tensor=32, global_batch=1024, seq_len=8192,
    learning_rate=1.5e-4, schedule="linear", warmup_steps=100,
)  # fmt: skip
_LLAMA_3_70B = Recipe(
    model=LLAMA_3_70B, instances=16, tensor=32, pipeline=8, global_batch=1024, seq_len=8192,
    learning_rate=1.5e-5, final_rate=1e-6, warmup_steps=2000, steps=30_000, weight_decay=0.1,
    beta2=0.95, recompute="full", note=MLP_TOO,
)  # fmt: skip
_FINE_TUNED_8B = Recipe(
    model=LLAMA_3_8B, instances=1, tensor=32, global_batch=64, learning_rate=1.5e-4,
    schedule="linear", warmup_steps=10, steps=5000,
)  # fmt: skip
_MEGATRON_7B = Recipe(
    model=LLAMA_2_7B, instances=1, tensor=8, global_batch=1024, learning_rate=3e-4,
    final_rate=3e-5, warmup_steps=2000, steps=20_000, weight_decay=0.1, beta2=0.95,
)  # fmt: skip
_DROPLESS = Recipe(
    model=MIXTRAL_8X7B, instances=8, tensor=32, pipeline=4, global_batch=128,
    learning_rate=3e-4, final_rate=3e-5, warmup_steps=4000, steps=22_500, weight_decay=0.1,
    beta2=0.95, recompute="full", more={"router_aux_loss_coef": 0.02},
)  # fmt: skip
_MIXTRAL = replace(_DROPLESS, more={**_DROPLESS.more, "expert_capacity_factor": 2.0})

RECIPES: Mapping[str, Recipe] = {
    "hf_llama_7B": Recipe(
        model=LLAMA_2_7B, instances=1, tensor=8, global_batch=1024, learning_rate=3e-4,
        schedule="linear", warmup_steps=100,
    ),
    "hf_llama3_8B": _LLAMA_3_8B,
    "hf_llama3_8B_trn2": replace(
        _LLAMA_3_8B, instances=1, target="trn2.48xlarge", tensor=16,
        note="recomputes attention scores; the original's flash attention kernel never stores them",
    ),
    "hf_llama3.1_8B": replace(
        _LLAMA_3_8B, model=LLAMA_3_1_8B, instances=32, learning_rate=1.5e-5,
        final_rate=1e-6, schedule="cosine", warmup_steps=2000, steps=30_000, weight_decay=0.1,
        beta2=0.95, recompute="full", note=MLP_TOO,
    ),
    "hf_llama3_70B": _LLAMA_3_70B,
    "hf_llama3.1_70B": replace(_LLAMA_3_70B, model=LLAMA_3_1_70B, instances=32),
    "hf_llama3_70B_CP": replace(_LLAMA_3_70B, context=2),
    "hf_llama3_70B_trn2": replace(
        _LLAMA_3_70B, instances=8, target="trn2.48xlarge", pipeline=4, steps=10_000,
        recompute="dots",
        note="recomputes all but products with weights; the original recomputes norms, activations",
    ),
    "hf_llama3_405B": replace(
        _LLAMA_3_70B, model=LLAMA_3_1_405B, instances=32, target="trn2.48xlarge", tensor=64,
        learning_rate=8e-5,
        note=f"logical cores of two, four data-parallel groups; the original uses each physical "
        f"core, eight groups; {MLP_TOO}",
    ),
    "hf_llama3.1_405B_trn1": replace(
        _LLAMA_3_70B, model=LLAMA_3_1_405B, instances=64, pipeline=32, global_batch=256,
        note="",
    ),
    "hf_llama3_8B_SFT": replace(_FINE_TUNED_8B, task="sft"),
    "hf_mistral_7B_SFT": replace(_FINE_TUNED_8B, model=MISTRAL_7B, task="sft"),
    "hf_llama3_8B_SFT_lora": replace(
        _FINE_TUNED_8B, precision="autocast", task="sft",
        more={
            "zero_1": False,
            "lora_rank": 16,
            "lora_alpha": 32.0,
            "target_modules": "q_proj,k_proj,v_proj",
        },
    ),
    "hf_llama3_8B_DPO": replace(
        _FINE_TUNED_8B, global_batch=4, learning_rate=5e-7, recompute="full", task="dpo",
        more={"dpo_beta": 0.01},
    ),
    "hf_llama3_8B_ORPO": replace(
        _FINE_TUNED_8B, global_batch=16, schedule="cosine", recompute="full", task="orpo"
    ),
    "hf_mixtral_8x7b": _MIXTRAL,
    "hf_mixtral_8x7b_dropless": _DROPLESS,
    "megatron_mixtral_8x7b": replace(_MIXTRAL, instances=16),
    "megatron_mixtral_8x7b_dropless": replace(_DROPLESS, instances=16),
    "megatron_gpt": replace(
        _MEGATRON_7B, seq_len=2048, learning_rate=1.5e-4, final_rate=1e-5, warmup_steps=750,
        weight_decay=0.01, note="uses a Llama instead of the GPT",
    ),
    "megatron_llama_7B": _MEGATRON_7B,
    "megatron_mistral": replace(_MEGATRON_7B, model=MISTRAL_7B),
    "megatron_llama2_7B_SFT": replace(
        _MEGATRON_7B, global_batch=64, warmup_steps=10, steps=5000, task="sft"
    ),
    "megatron_llama_70b": replace(
        _MEGATRON_7B, model=LLAMA_2_70B, instances=8, pipeline=16, global_batch=512,
        recompute="full",
    ),
    "optimum_qwen3_8B": Recipe(
        model=QWEN_3_8B, instances=1, tensor=8, global_batch=32, learning_rate=8e-4,
        warmup_steps=0, precision="mixed_precisionSR", task="sft", note=LENGTH,
        more={"num_train_epochs": 3.0},
    ),
}  # fmt: skip
