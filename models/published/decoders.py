"""Language models, as config.json on https://huggingface.co describes them."""

from collections.abc import Mapping
from typing import Any

Fields = dict[str, Any]

_LLAMA: Fields = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "dtype": "bfloat16",
}

# meta-llama/Llama-2-7b, Llama-2-70b, Meta-Llama-3-8B, Meta-Llama-3-70B, Llama-3.1-405B
LLAMA_2_7B: Fields = _LLAMA | {
    "vocab_size": 32_000,
    "hidden_size": 4096,
    "intermediate_size": 11_008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "max_position_embeddings": 4096,
    "rope_theta": 10_000.0,
}
LLAMA_2_70B: Fields = LLAMA_2_7B | {
    "hidden_size": 8192,
    "intermediate_size": 28_672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
}
LLAMA_3_8B: Fields = LLAMA_2_7B | {
    "vocab_size": 128_256,
    "intermediate_size": 14_336,
    "num_key_value_heads": 8,
    "max_position_embeddings": 8192,
    "rope_theta": 500_000.0,
}
LLAMA_3_70B: Fields = LLAMA_3_8B | {
    "hidden_size": 8192,
    "intermediate_size": 28_672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
}
_LLAMA_3_1: Fields = {
    "max_position_embeddings": 131_072,
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
}
LLAMA_3_1_8B: Fields = LLAMA_3_8B | _LLAMA_3_1
LLAMA_3_1_70B: Fields = LLAMA_3_70B | _LLAMA_3_1
LLAMA_3_1_405B: Fields = LLAMA_3_1_70B | {
    "hidden_size": 16_384,
    "intermediate_size": 53_248,
    "num_hidden_layers": 126,
    "num_attention_heads": 128,
}

# mistralai/Mistral-7B-v0.1, Mixtral-8x7B-v0.1
MISTRAL_7B: Fields = LLAMA_2_7B | {
    "architectures": ["MistralForCausalLM"],
    "model_type": "mistral",
    "intermediate_size": 14_336,
    "num_key_value_heads": 8,
    "max_position_embeddings": 32_768,
    "sliding_window": 4096,
}
MIXTRAL_8X7B: Fields = MISTRAL_7B | {
    "architectures": ["MixtralForCausalLM"],
    "model_type": "mixtral",
    "sliding_window": None,
    "rope_theta": 1_000_000.0,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
}

# Qwen/Qwen3-8B
QWEN_3_8B: Fields = _LLAMA | {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": 151_936,
    "hidden_size": 4096,
    "intermediate_size": 12_288,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 40_960,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1_000_000.0,
    "attention_bias": False,
    "use_sliding_window": False,
}
LLAMA_3_2_1B: Fields = LLAMA_3_1_8B | {
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "head_dim": 64,
    "rope_scaling": _LLAMA_3_1["rope_scaling"] | {"factor": 32.0},
    "tie_word_embeddings": True,
}
LLAMA_3_2_3B: Fields = LLAMA_3_2_1B | {
    "hidden_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 24,
    "head_dim": 128,
}
TINY_LLAMA_1B: Fields = LLAMA_2_7B | {
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 22,
    "num_key_value_heads": 4,
    "max_position_embeddings": 2048,
}
QWEN_2_5_7B: Fields = {
    **{name: value for name, value in QWEN_3_8B.items() if name not in ("head_dim",)},
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "vocab_size": 152_064,
    "hidden_size": 3584,
    "intermediate_size": 18_944,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "max_position_embeddings": 131_072,
}
QWEN_3_06B: Fields = QWEN_3_8B | {
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "tie_word_embeddings": True,
}
QWEN_3_32B: Fields = QWEN_3_8B | {
    "hidden_size": 5120,
    "intermediate_size": 25_600,
    "num_hidden_layers": 64,
    "num_attention_heads": 64,
}
QWEN_3_30B_A3B: Fields = QWEN_3_8B | {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_hidden_layers": 48,
    "num_key_value_heads": 4,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
}
PHI_2: Fields = {
    "architectures": ["PhiForCausalLM"],
    "model_type": "phi",
    "vocab_size": 51_200,
    "hidden_size": 2560,
    "intermediate_size": 10_240,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "max_position_embeddings": 2048,
    "partial_rotary_factor": 0.4,
    "hidden_act": "gelu_new",
    "dtype": "float16",
}
GPT2: Fields = {
    "architectures": ["GPT2LMHeadModel"],
    "model_type": "gpt2",
    "vocab_size": 50_257,
    "n_positions": 1024,
    "n_embd": 768,
    "n_layer": 12,
    "n_head": 12,
}

DECODERS: Mapping[str, Fields] = {
    "meta-llama/Llama-2-7b-hf": LLAMA_2_7B,
    "meta-llama/Llama-2-70b-hf": LLAMA_2_70B,
    "meta-llama/Meta-Llama-3-8B": LLAMA_3_8B,
    "meta-llama/Meta-Llama-3-70B": LLAMA_3_70B,
    "meta-llama/Llama-3.1-8B": LLAMA_3_1_8B,
    "meta-llama/Llama-3.1-70B": LLAMA_3_1_70B,
    "meta-llama/Llama-3.1-405B": LLAMA_3_1_405B,
    "meta-llama/Llama-3.2-1B": LLAMA_3_2_1B,
    "meta-llama/Llama-3.2-3B": LLAMA_3_2_3B,
    "TinyLlama/TinyLlama-1.1B-Chat-v1.0": TINY_LLAMA_1B,
    "mistralai/Mistral-7B-v0.1": MISTRAL_7B,
    "mistralai/Mixtral-8x7B-v0.1": MIXTRAL_8X7B,
    "Qwen/Qwen2.5-7B-Instruct": QWEN_2_5_7B,
    "Qwen/Qwen3-0.6B": QWEN_3_06B,
    "Qwen/Qwen3-8B": QWEN_3_8B,
    "Qwen/Qwen3-32B": QWEN_3_32B,
    "Qwen/Qwen3-30B-A3B": QWEN_3_30B_A3B,
    "microsoft/phi-2": PHI_2,
    "openai-community/gpt2": GPT2,
}
