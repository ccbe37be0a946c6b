"""The models of published trainings, as config.json on https://huggingface.co describes them."""

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
