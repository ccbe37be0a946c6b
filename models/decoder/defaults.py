"""The fields of config.json that each family of decoders knows, with what transformers takes for
one that a file leaves out; and its own names for some of them."""

from collections.abc import Mapping
from typing import Any

_COMMON: Mapping[str, Any] = {
    "vocab_size": 32_000,
    "hidden_size": 4096,
    "intermediate_size": 11_008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": None,  # as many as there are query heads
    "head_dim": None,  # hidden_size / num_attention_heads
    "hidden_act": "silu",
    "max_position_embeddings": 2048,
    "initializer_range": 0.02,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "rope_theta": 10_000.0,
}
_BIASES = {"attention_bias": False, "mlp_bias": False}
LLAMA_FIELDS = {**_COMMON, **_BIASES}
MISTRAL_FIELDS = {
    **_COMMON,
    "intermediate_size": 14_336,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131_072,
    "sliding_window": 4096,
}
_WINDOW = {"use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 28}
QWEN2_FIELDS = {
    **_COMMON,
    **_WINDOW,
    "vocab_size": 151_936,
    "intermediate_size": 22_016,
    "num_key_value_heads": 32,
    "max_position_embeddings": 32_768,
}
QWEN3_FIELDS = {**QWEN2_FIELDS, "head_dim": 128, "attention_bias": False}
GRANITE_FIELDS = {
    **_COMMON,
    **_BIASES,
    "embedding_multiplier": 1.0,
    "logits_scaling": 1.0,
    "residual_multiplier": 1.0,
    "attention_multiplier": 1.0,
}
PHI3_FIELDS = {
    **_COMMON,
    "vocab_size": 32_064,
    "hidden_size": 3072,
    "intermediate_size": 8192,
    "max_position_embeddings": 4096,
    "original_max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "partial_rotary_factor": 1.0,
    "sliding_window": None,
}
SMOLLM3_FIELDS = {
    **_COMMON,
    **_BIASES,
    "vocab_size": 128_256,
    "hidden_size": 2048,
    "num_hidden_layers": 36,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "max_position_embeddings": 32_768,
    "rope_theta": 2_000_000.0,
    "tie_word_embeddings": True,
    "use_sliding_window": False,
    "no_rope_layer_interval": 4,
}
GEMMA3_FIELDS = {
    **_COMMON,
    "vocab_size": 262_208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "hidden_act": "gelu_pytorch_tanh",
    "max_position_embeddings": 131_072,
    "rope_theta": 1_000_000.0,
    "rope_local_base_freq": 10_000.0,
    "tie_word_embeddings": True,
    "attention_bias": False,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "sliding_window_pattern": 6,
    "final_logit_softcapping": None,
}
MIXTRAL_FIELDS = {
    **MISTRAL_FIELDS,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1_000_000.0,
    "sliding_window": None,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
}
QWEN3_MOE_FIELDS = {
    **_COMMON,
    **_WINDOW,
    "vocab_size": 151_936,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_hidden_layers": 24,
    "num_key_value_heads": 4,
    "max_position_embeddings": 32_768,
    "attention_bias": False,
    "num_local_experts": 128,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
    "norm_topk_prob": False,
    "decoder_sparse_step": 1,
}
GPT_OSS_FIELDS = {
    **_COMMON,
    "vocab_size": 201_088,
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "num_hidden_layers": 36,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 150_000.0,
    "rope_parameters": {
        "rope_type": "yarn",
        "factor": 32.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "truncate": False,
        "original_max_position_embeddings": 4096,
    },
    "sliding_window": 128,
    "attention_bias": True,
    "num_local_experts": 128,
    "num_experts_per_tok": 4,
    "swiglu_alpha": 1.702,
    "swiglu_limit": 7.0,
}
LLAMA4_FIELDS = {
    **_COMMON,
    "vocab_size": 202_048,
    "hidden_size": 5120,
    "intermediate_size": 8192,
    "intermediate_size_mlp": 16_384,
    "num_hidden_layers": 48,
    "num_attention_heads": 40,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500_000.0,
    "attention_bias": False,
    "num_local_experts": 16,
    "num_experts_per_tok": 1,
    "interleave_moe_layer_step": 1,
    "use_qk_norm": True,
    "no_rope_layer_interval": 4,
    "attention_chunk_size": 8192,
    "attn_temperature_tuning": True,
    "floor_scale": 8192,
    "attn_scale": 0.1,
}
GPT2_FIELDS = {
    "vocab_size": 50_257,
    "hidden_size": 768,
    "intermediate_size": None,  # four times as wide
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "hidden_act": "gelu_new",
    "max_position_embeddings": 1024,
    "initializer_range": 0.02,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
}
LAYER_NORM_NAME = {"rms_norm_eps": "layer_norm_eps"}
GPT2_NAMES = {
    "hidden_size": "n_embd",
    "intermediate_size": "n_inner",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "hidden_act": "activation_function",
    "max_position_embeddings": "n_positions",
    "rms_norm_eps": "layer_norm_epsilon",
}
GPT_NEOX_FIELDS = {
    "vocab_size": 50_432,
    "hidden_size": 6144,
    "intermediate_size": 24_576,
    "num_hidden_layers": 44,
    "num_attention_heads": 64,
    "hidden_act": "gelu",
    "max_position_embeddings": 2048,
    "initializer_range": 0.02,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "rope_theta": 10_000.0,
    "partial_rotary_factor": 0.25,
    "use_parallel_residual": True,
    "attention_bias": True,
}
PHI_FIELDS = {
    **_COMMON,
    "vocab_size": 51_200,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 24,
    "hidden_act": "gelu_new",
    "rms_norm_eps": 1e-5,
    "partial_rotary_factor": 0.5,
    "qk_layernorm": False,
}
