"""The parity table: architectures, each with tiny configs that make its features matter.

A row is a Hugging Face class and the fields of its config; `tests/models/parity/test_parity.py`
compares the random model that transformers makes of it with ours. This file imports neither.
"""

from typing import Any

from tests.models.parity import media_cases, text_cases
from tests.models.parity.case import Case

DECODER = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LLAMA3_SCALING = {
    "rope_type": "llama3",
    "rope_theta": 100.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 100.0,
    "factor": 4.0,
    "original_max_position_embeddings": 16,
    "beta_fast": 2.0,
    "beta_slow": 0.5,
}
LINEAR = {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 2.0}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10_000.0,
    "short_factor": [1.0, 1.1, 1.3],
    "long_factor": [1.0, 2.0, 4.0],
}

GPT2 = {
    "vocab_size": 96,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
FALCON = {
    "vocab_size": 96,
    "hidden_size": 32,
    "ffn_hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_kv_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
NEOX = {key: value for key, value in DECODER.items() if key != "num_key_value_heads"}

LATENT = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 12,
    "q_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 8,
}
DEEPSEEK = LATENT | {
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 16,
    "n_shared_experts": 2,
    "n_group": 4,
    "topk_group": 2,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 1.5,
}


def _decoder(architecture: str, variant: str = "", length: int = 12, **changes: Any) -> Case:
    return Case(architecture, variant, DECODER | changes, length)


DECODERS = (
    _decoder("LlamaForCausalLM", "1 and 2"),
    _decoder(
        "LlamaForCausalLM",
        "3, tied, biases",
        rope_parameters=LLAMA3_SCALING,
        tie_word_embeddings=True,
        attention_bias=True,
        mlp_bias=True,
        head_dim=16,
    ),
    _decoder("LlamaForCausalLM", "yarn", rope_parameters=YARN),
    _decoder("LlamaForCausalLM", "linear", rope_parameters=LINEAR),
    _decoder("MistralForCausalLM", sliding_window=5),
    _decoder("MistralForCausalLM", "without window", sliding_window=None, head_dim=16),
    _decoder("Qwen2ForCausalLM", tie_word_embeddings=True),
    _decoder(
        "Qwen2ForCausalLM",
        "sliding window",
        use_sliding_window=True,
        sliding_window=4,
        max_window_layers=1,
    ),
    _decoder("Qwen3ForCausalLM", head_dim=16),
    _decoder(
        "GraniteForCausalLM",
        embedding_multiplier=6.0,
        attention_multiplier=0.3,
        residual_multiplier=0.4,
        logits_scaling=3.0,
        tie_word_embeddings=True,
    ),
    _decoder("Phi3ForCausalLM", sliding_window=6, original_max_position_embeddings=64),
    *(
        _decoder(
            "Phi3ForCausalLM",
            f"longrope, {name} texts",
            length,
            rope_parameters=dict(LONGROPE),
            partial_rotary_factor=0.75,
            original_max_position_embeddings=16,
        )
        for name, length in (("short", 8), ("long", 20))
    ),
    _decoder("SmolLM3ForCausalLM", no_rope_layer_interval=2, num_hidden_layers=2),
    _decoder(
        "SmolLM3ForCausalLM",
        "sliding window",
        no_rope_layers=[0, 1],
        use_sliding_window=True,
        sliding_window=4,
    ),
    _decoder(
        "Gemma3ForCausalLM",
        head_dim=16,
        sliding_window=4,
        query_pre_attn_scalar=12,
        layer_types=["sliding_attention", "full_attention"],
    ),
    _decoder(
        "Gemma3ForCausalLM",
        "soft cap",
        head_dim=8,
        sliding_window=4,
        query_pre_attn_scalar=8,
        final_logit_softcapping=2.0,
        rope_parameters={
            "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
            "full_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 500.0},
        },
    ),
    _decoder("GemmaForCausalLM", head_dim=16),
    _decoder(
        "Gemma2ForCausalLM",
        head_dim=16,
        sliding_window=4,
        query_pre_attn_scalar=12,
        attn_logit_softcapping=1.5,
        final_logit_softcapping=2.0,
    ),
    _decoder("Olmo2ForCausalLM"),
    _decoder("Olmo2ForCausalLM", "biases, yarn", attention_bias=True, rope_parameters=YARN),
    _decoder("CohereForCausalLM", logit_scale=0.5),
    _decoder("CohereForCausalLM", "norms of heads", use_qk_norm=True, attention_bias=True),
    _decoder(
        "Cohere2ForCausalLM",
        sliding_window=4,
        layer_types=["sliding_attention", "full_attention"],
    ),
    _decoder("GlmForCausalLM", head_dim=8),
    _decoder("Glm4ForCausalLM", head_dim=12),
    _decoder("SeedOssForCausalLM", head_dim=8),
    _decoder("SeedOssForCausalLM", "biases", head_dim=8, attention_out_bias=True, mlp_bias=True),
    _decoder("InternLM3ForCausalLM", head_dim=16, qkv_bias=True, bias=True),
    _decoder("Starcoder2ForCausalLM"),
    _decoder("Starcoder2ForCausalLM", "sliding window", sliding_window=5, use_bias=False),
    Case("FalconForCausalLM", "7B", FALCON, unsharded_only="one head of keys"),
    Case("FalconForCausalLM", "40B", FALCON | {"new_decoder_architecture": True}),
    Case(
        "FalconForCausalLM",
        "11B",
        FALCON | {"new_decoder_architecture": True, "num_ln_in_parallel_attn": 1},
    ),
    Case(
        "FalconForCausalLM",
        "sequential, biases",
        FALCON | {"parallel_attn": False, "multi_query": False, "bias": True, "num_kv_heads": 4},
    ),
    _decoder(
        "GraniteMoeForCausalLM",
        num_local_experts=4,
        num_experts_per_tok=2,
        embedding_multiplier=6.0,
        attention_multiplier=0.3,
        residual_multiplier=0.4,
        logits_scaling=3.0,
    ),
    _decoder("DeepseekV2ForCausalLM", **DEEPSEEK),
    _decoder(
        "DeepseekV2ForCausalLM",
        "groups, queries of the stream",
        **DEEPSEEK | {"q_lora_rank": None, "v_head_dim": 6, "norm_topk_prob": False},
        topk_method="group_limited_greedy",
        attention_bias=True,
    ),
    _decoder("DeepseekV3ForCausalLM", **DEEPSEEK),
    _decoder(
        "DeepseekV3ForCausalLM",
        "yarn",
        **DEEPSEEK,
        norm_topk_prob=False,
        rope_parameters=YARN | {"mscale": 0.7, "mscale_all_dim": 1.0},
    ),
    _decoder("MiniCPM3ForCausalLM", **LATENT, scale_emb=3, dim_model_base=16),
    _decoder("MixtralForCausalLM", num_local_experts=4, num_experts_per_tok=2),
    _decoder("MixtralForCausalLM", "sliding window", num_local_experts=4, sliding_window=5),
    _decoder(
        "GptOssForCausalLM",
        head_dim=8,
        num_local_experts=4,
        num_experts_per_tok=2,
        sliding_window=4,
        swiglu_limit=0.05,
        initializer_range=0.2,
        rope_parameters=YARN,
    ),
    _decoder(
        "Llama4ForCausalLM",
        head_dim=8,
        intermediate_size_mlp=64,
        num_local_experts=4,
        num_experts_per_tok=2,
        no_rope_layers=[1, 0],
        attention_chunk_size=5,
        floor_scale=4,
        attn_scale=0.3,
    ),
    _decoder(
        "Llama4ForCausalLM",
        "mixed with dense layers",
        intermediate_size_mlp=64,
        num_local_experts=4,
        interleave_moe_layer_step=2,
        head_dim=16,
        attention_bias=True,
        use_qk_norm=False,
        attn_temperature_tuning=False,
        attention_chunk_size=7,
        rope_parameters=LLAMA3_SCALING,
    ),
    _decoder(
        "Qwen3MoeForCausalLM",
        head_dim=8,
        num_experts=8,
        num_experts_per_tok=3,
        moe_intermediate_size=16,
        norm_topk_prob=True,
    ),
    _decoder(
        "Qwen3MoeForCausalLM",
        "mixed with dense layers",
        head_dim=8,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=16,
        norm_topk_prob=False,
        mlp_only_layers=[0],
    ),
    Case("GPT2LMHeadModel", config=GPT2),
    Case(
        "GPT2LMHeadModel",
        "scores by layer",
        GPT2
        | {"n_inner": 48, "scale_attn_by_inverse_layer_idx": True, "scale_attn_weights": False},
        untied=True,
    ),
    Case("GPTNeoXForCausalLM", config=NEOX | {"rotary_pct": 0.5}),
    Case(
        "GPTNeoXForCausalLM",
        "sequential, no biases",
        NEOX | {"use_parallel_residual": False, "attention_bias": False, "rotary_pct": 1.0},
    ),
    _decoder("PhiForCausalLM"),
    _decoder("PhiForCausalLM", "norms of heads", qk_layernorm=True, partial_rotary_factor=0.25),
)

# Decoders with the heads of encoders.
_HEADS = ("Model", "ForSequenceClassification", "ForTokenClassification")
_EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
CLASSIFIERS = tuple(
    Case(family + head, config=config | {"num_labels": 3})
    for family, config, heads in (
        ("GPT2", GPT2 | {"pad_token_id": 0}, _HEADS),
        ("GPTNeoX", NEOX, _HEADS),
        *((family, DECODER, _HEADS) for family in ("Llama", "Mistral", "Phi", "Phi3", "Qwen2")),
        ("Qwen3", DECODER | {"head_dim": 16}, _HEADS),
        ("SmolLM3", DECODER, _HEADS),
        ("Granite", DECODER, _HEADS[:1]),
        *(
            (family, DECODER | {"head_dim": 8}, _HEADS)
            for family in ("Starcoder2", "Glm", "Glm4", "SeedOss")
        ),
        *((family, DECODER | {"head_dim": 16}, _HEADS) for family in ("Gemma", "Gemma2")),
        ("Falcon", FALCON | {"new_decoder_architecture": True}, _HEADS),
        ("DeepseekV2", DECODER | DEEPSEEK, _HEADS[:2]),
        ("DeepseekV3", DECODER | DEEPSEEK, _HEADS),
        ("MiniCPM3", DECODER | LATENT, _HEADS[:2]),
        ("Olmo2", DECODER, _HEADS[:2]),
        *((family, DECODER, _HEADS[:1]) for family in ("Cohere", "Cohere2")),
        ("GraniteMoe", DECODER | _EXPERTS, _HEADS[:1]),
        ("Gemma3Text", DECODER | {"head_dim": 16}, _HEADS[:2]),
        ("Mixtral", DECODER | _EXPERTS, _HEADS),
        (
            "Qwen3Moe",
            DECODER | {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
            _HEADS,
        ),
        ("GptOss", DECODER | _EXPERTS | {"head_dim": 16}, _HEADS),
    )
    for head in heads
)

SIGLIP = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 24,
    "patch_size": 4,
}
GEMMA3 = {
    "text_config": DECODER
    | {
        "head_dim": 16,
        "sliding_window": 3,
        "layer_types": ["sliding_attention", "full_attention"],
    },
    "vision_config": SIGLIP | {"vision_use_head": False},
    "mm_tokens_per_image": 4,
    "image_token_index": 90,
}
SMOLVLM = {
    "text_config": DECODER | {"model_type": "llama"},
    "vision_config": SIGLIP,
    "image_token_id": 90,
}
IDEFICS3 = SMOLVLM | {
    "text_config": DECODER | {"max_position_embeddings": 96},
    "vision_config": SIGLIP | {"image_size": 80},
    "scale_factor": 5,
}
VISION_LANGUAGE = (
    Case("Gemma3ForConditionalGeneration", config=GEMMA3),
    Case("SmolVLMForConditionalGeneration", config=SMOLVLM),
    Case("Idefics3ForConditionalGeneration", "tied", IDEFICS3 | {"tie_word_embeddings": True}),
)

CASES = (*DECODERS, *CLASSIFIERS, *VISION_LANGUAGE, *text_cases.CASES, *media_cases.CASES)
