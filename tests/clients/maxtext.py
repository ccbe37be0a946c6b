"""MaxText in small, a row a configuration, and published models compiled ahead of time."""

from __future__ import annotations

from collections.abc import Mapping

COMMON = (
    "dataset_type=synthetic steps=5 per_device_batch_size=1 max_target_length=128 base_emb_dim=128 "
    "base_num_query_heads=4 base_num_kv_heads=2 head_dim=32 base_mlp_dim=256 "
    "base_num_decoder_layers=2 vocab_size=512 log_config=False enable_checkpointing=False"
)
"""Settings of all configurations: a decoder of two layers and 512 words."""

_EXPERTS = "num_experts=4 num_experts_per_tok=2 "
_MIXTRAL = "decoder_block=mixtral base_mlp_dim=128 base_moe_mlp_dim=128 " + _EXPERTS

CONFIGURATIONS: Mapping[str, str] = {
    "plain": "",
    "fsdp and tensor": "ici_fsdp_parallelism=2 ici_tensor_parallelism=2",
    "fsdp and context": "ici_fsdp_parallelism=2 ici_context_parallelism=2",
    "fsdp and pipeline": (
        "ici_fsdp_parallelism=2 ici_pipeline_parallelism=2 base_num_decoder_layers=4 "
        "num_pipeline_microbatches=4 per_device_batch_size=4 max_target_length=64"
    ),
    "experts, dense": (
        _MIXTRAL + "sparse_matmul=False ici_fsdp_parallelism=2 ici_expert_parallelism=2"
    ),
    "experts, ragged": _MIXTRAL + "sparse_matmul=True",
    "latent attention": (
        "decoder_block=deepseek attention_type=mla base_num_kv_heads=4 q_lora_rank=32 "
        "kv_lora_rank=32 qk_nope_head_dim=32 qk_rope_head_dim=16 v_head_dim=32 shared_experts=1 "
        "first_num_dense_layers=1 base_num_decoder_layers=3 base_moe_mlp_dim=64 "
        "sparse_matmul=False mscale=1.0 " + _EXPERTS
    ),
    "Gemma 2": (
        "decoder_block=gemma2 use_post_attn_norm=True use_post_ffw_norm=True "
        "sliding_window_size=64 attn_logits_soft_cap=50.0 final_logits_soft_cap=30.0"
    ),
    "Qwen 3": "decoder_block=qwen3 use_qk_norm=True",
    "int8": "quantization=int8",
    "recomputation and accumulation": (
        "remat_policy=full opt_type=adam_pax gradient_accumulation_steps=2"
    ),
    "checkpoints": "enable_checkpointing=True async_checkpointing=False checkpoint_period=2",
}
"""Configuration -> its settings, behind `COMMON`."""

_STEP = "per_device_batch_size=1 max_target_length=4096 remat_policy=full"
_FSDP = f"{_STEP} ici_fsdp_parallelism=-1"
_EXPERTS_SPLIT = (
    f"{_STEP} sparse_matmul=False capacity_factor=1.25 ici_fsdp_parallelism=-1 "
    "ici_expert_parallelism={}"
)
_MODELS: Mapping[str, str] = {
    "qwen3-0.6b": _FSDP,
    "gemma3-4b": _FSDP,
    "mistral-7b": _FSDP,
    "llama3.1-8b": _FSDP,
    "llama3.1-70b": f"{_FSDP} ici_tensor_parallelism=4",
    "mixtral-8x7b": _EXPERTS_SPLIT.format(8),
    "qwen3-30b-a3b": _EXPERTS_SPLIT.format(4),
    "deepseek2-16b": _EXPERTS_SPLIT.format(4),
}

AHEAD: Mapping[str, str] = {
    **{
        f"{model} on {target}": f"--target={target} model_name={model} {settings}"
        for target in ("trn2.48xlarge", "trn2-ultraserver")
        for model, settings in _MODELS.items()
    },
    "llama3.1-405b on 16 trn2.48xlarge": (
        "--target=trn2.48xlarge --instances=16 model_name=llama3.1-405b ici_fsdp_parallelism=64 "
        f"dcn_fsdp_parallelism=16 dcn_data_parallelism=1 {_STEP}"
    ),
}
"""Published models -> arguments of ``neuronjax maxtext compile``."""
