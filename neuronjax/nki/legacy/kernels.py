"""`neuronxcc.nki.kernels` and `neuronxcc.nki._private_kernels`: names, with what took their place.

AWS's own kernels of that generation came as a part of its compiler. Their sources are in
nki-samples, and kernels for the same purposes in nki-library, whose package is `nkilib` (release
notes of SDK 2.27).
"""

from __future__ import annotations

from collections.abc import Mapping

from neuronjax.nki.refusal import removed, unknown

_LIBRARY = "call {} of nki-library"
_SAMPLE = ", or take its source from nki-samples, src/nki_samples/reference/{}"

_ATTENTION = _LIBRARY.format("nkilib.core.attention.attention_cte")
_BACKWARD = _LIBRARY.format("nkilib.core.attention.attention_bwd")
_TOKENS = _LIBRARY.format("nkilib.core.attention.attention_tkg")
_QKV = _LIBRARY.format("nkilib.core.qkv.qkv")
_MLP = _LIBRARY.format("nkilib.core.mlp.mlp")
_MOE = _LIBRARY.format("nkilib.core.moe.moe_cte.moe_cte")
_ROPE = _LIBRARY.format("nkilib.core.embeddings.rope")

SUCCESSORS: Mapping[str, str] = {
    "flash_fwd": _ATTENTION + _SAMPLE.format("attention.py"),
    "flash_attn_bwd": _BACKWARD + _SAMPLE.format("attention.py"),
    "FlashConfig": _ATTENTION + _SAMPLE.format("attention.py"),
    "fused_self_attn_for_SD_small_head_size": _ATTENTION + _SAMPLE.format("attention.py"),
    "allocated_fused_self_attn_for_SD_small_head_size": _ATTENTION
    + _SAMPLE.format("allocated_attention.py"),
    "allocated_fused_rms_norm_qkv": _QKV + _SAMPLE.format("allocated_fused_linear.py"),
    "resize_nearest_fixed_dma_kernel": "take its source from nki-samples, "
    "src/nki_samples/reference/vision.py",
    "select_and_scatter_kernel": "take its source from nki-samples, "
    "src/nki_samples/reference/vision.py",
    "attention_isa_kernel": _ATTENTION,
    "attention_isa_kernel_cache": _ATTENTION,
    "backward_attention_isa_kernel": _BACKWARD,
    "attention_tkg_fwd_isa_kernel": _TOKENS,
    "attention_token_gen_kernel": _TOKENS,
    "rmsnorm_qkv_isa_kernel": _QKV,
    "rmsnorm_qkv_isa_fused_add_kernel": _QKV,
    "mlp_isa_kernel": _MLP,
    "mlp_fused_add_isa_kernel": _MLP,
    "quant_mlp_isa_kernel": _MLP,
    "quant_mlp_fused_add_isa_kernel": _MLP,
    "blockwise_mm": _MOE,
    "SkipMode": _MOE,
    "cumsum": _LIBRARY.format("nkilib.core.cumsum.cumsum"),
    "RoPE": _ROPE,
    "RoPE_sbuf": _ROPE,
}
"""Name -> what to use instead."""


def __getattr__(name: str) -> None:
    if name in SUCCESSORS:
        raise removed("neuronxcc.nki.kernels", name, SUCCESSORS[name])
    raise unknown("neuronxcc.nki.kernels", name, SUCCESSORS)
