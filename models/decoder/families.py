"""The families of decoders: from a family's config.json and key table to the common model.

Defaults are those of transformers for fields that a file leaves out.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from models.architecture import Architecture
from models.decoder.config import DecoderConfig
from models.decoder.model import Decoder
from models.decoder.sharding import AXES
from models.decoder.sharing import SHARING
from models.decoder.weights import GEMMA3, LLAMA, MIXTRAL, PHI3, QWEN3_MOE, key_table
from models.errors import ConfigError
from models.layers.moe import Experts
from models.weights.fields import Fields, read_dtype
from models.weights.rotary_fields import read_rotary
from models.weights.table import Row


def _llama(fields: Fields, **changes: Any) -> DecoderConfig:
    """The fields that all families share; `changes` replaces some."""
    dim, num_heads = fields.positive("hidden_size"), fields.positive("num_attention_heads")
    dtype = read_dtype(fields)
    settings: dict[str, Any] = {
        "vocab_size": fields.positive("vocab_size"),
        "num_layers": fields.positive("num_hidden_layers"),
        "dim": dim,
        "hidden_dim": fields.positive("intermediate_size"),
        "num_heads": num_heads,
        "num_kv_heads": fields.positive("num_key_value_heads", num_heads),
        "head_dim": fields.positive("head_dim", dim // num_heads),
        "max_seq_len": fields.positive("max_position_embeddings"),
        "norm_eps": fields.number("rms_norm_eps", 1e-6),
        "tie_embeddings": fields.flag("tie_word_embeddings", False),
        "initializer_range": fields.number("initializer_range", 0.02),
        "dtype": dtype,
        "param_dtype": dtype,
        "act": fields.text("hidden_act", "silu"),
        "attention_bias": fields.flag("attention_bias", False),
        "attention_out_bias": fields.flag("attention_bias", False),
        "mlp_bias": fields.flag("mlp_bias", False),
    }
    settings |= changes
    if "rotary" not in settings:
        settings["rotary"] = read_rotary(fields)
    return DecoderConfig(**settings)


def llama_json(config: DecoderConfig) -> dict[str, Any]:
    """The config.json of a Llama with these dimensions.

    Raises ConfigError if the config has a feature that Llama lacks.
    """
    values = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": config.vocab_size,
        "num_hidden_layers": config.num_layers,
        "hidden_size": config.dim,
        "intermediate_size": config.hidden_dim,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "max_position_embeddings": config.max_seq_len,
        "rms_norm_eps": config.norm_eps,
        "rope_theta": config.rotary.theta,
        "tie_word_embeddings": config.tie_embeddings,
        "initializer_range": config.initializer_range,
        "hidden_act": config.act,
        "dtype": config.param_dtype,
    }
    if replace(_llama(Fields(values, "config")), dtype=config.dtype) != config:
        raise ConfigError(f"{config} has settings that Llama does not have")
    return values


def _all_layers(fields: Fields) -> tuple[int, ...]:
    return tuple(range(fields.positive("num_hidden_layers")))


def _sliding_layers(fields: Fields, otherwise: Callable[[int], bool]) -> tuple[int, ...]:
    """Layers with a sliding window: those of `layer_types`, or where `otherwise` holds."""
    layers = _all_layers(fields)
    if "layer_types" not in fields:
        return tuple(filter(otherwise, layers))
    types = fields.list("layer_types")
    known = {"full_attention", "sliding_attention"}
    if len(types) < len(layers) or not set(types) <= known:
        raise fields.fail("layer_types", f"one of {sorted(known)} per layer is needed")
    return tuple(i for i in layers if types[i] == "sliding_attention")


def _always_sliding(fields: Fields, **changes: Any) -> DecoderConfig:
    """Every layer has the window of `sliding_window`, if that is not null."""
    window = fields.positive("sliding_window", None)
    layers = () if window is None else _all_layers(fields)
    return _llama(fields, sliding_window=window, sliding_layers=layers, **changes)


def _mistral(fields: Fields) -> DecoderConfig:
    return _always_sliding(fields, attention_bias=False, attention_out_bias=False, mlp_bias=False)


def _qwen(fields: Fields, **changes: Any) -> DecoderConfig:
    """The window is off unless `use_sliding_window`; then it spares the first layers."""
    window = fields.positive("sliding_window", 4096)
    if not fields.flag("use_sliding_window", False):
        return _llama(fields, **changes)
    spared = fields.integer("max_window_layers", 28)
    layers = _sliding_layers(fields, lambda layer: layer >= spared)
    return _llama(fields, sliding_window=window, sliding_layers=layers, **changes)


def _qwen2(fields: Fields) -> DecoderConfig:
    return _qwen(fields, attention_bias=True, attention_out_bias=False, mlp_bias=False)


def _qwen3(fields: Fields) -> DecoderConfig:
    head_dim = fields.positive("head_dim", 128)
    return _qwen(fields, qk_norm=True, head_dim=head_dim, mlp_bias=False)


def _granite(fields: Fields) -> DecoderConfig:
    return _llama(
        fields,
        attention_scale=fields.number("attention_multiplier", 1.0),
        embedding_multiplier=fields.number("embedding_multiplier", 1.0),
        residual_multiplier=fields.number("residual_multiplier", 1.0),
        logit_divisor=fields.number("logits_scaling", 1.0),
    )


def _phi3(fields: Fields) -> DecoderConfig:
    rotary = read_rotary(fields)
    return _always_sliding(
        fields,
        rotary=rotary,
        norm_eps=fields.number("rms_norm_eps", 1e-5),
        attention_bias=False,
        attention_out_bias=False,
        mlp_bias=False,
    )


def _smollm3(fields: Fields) -> DecoderConfig:
    interval = fields.positive("no_rope_layer_interval", 4)
    layers = _all_layers(fields)
    turns = fields.list("no_rope_layers", [(i + 1) % interval != 0 for i in layers])
    if len(turns) < len(layers):
        raise fields.fail("no_rope_layers", "one number per layer is needed")
    still = tuple(i for i in layers if not turns[i])
    window = fields.positive("sliding_window", None)
    has_window = window is not None and fields.flag("use_sliding_window", False)
    sliding = _sliding_layers(fields, lambda layer: has_window and layer in still)
    return _llama(
        fields,
        rotary=read_rotary(fields, theta=2_000_000.0),
        tie_embeddings=fields.flag("tie_word_embeddings", True),
        no_rotary_layers=still,
        sliding_window=window,
        sliding_layers=sliding,
    )


def _gemma3(fields: Fields) -> DecoderConfig:
    fields.refuse("use_bidirectional_attention", False, why="only causal attention is supported")
    fields.refuse("attn_logit_softcapping", why="transformers ignores it, so its effect is unclear")
    pattern = fields.positive("sliding_window_pattern", 6)
    rotary, sliding_rotary = _gemma3_rotaries(fields)
    cap = fields.number("final_logit_softcapping", None)
    return _llama(
        fields,
        rotary=rotary,
        sliding_rotary=sliding_rotary,
        head_dim=fields.positive("head_dim", 256),
        tie_embeddings=fields.flag("tie_word_embeddings", True),
        act=fields.text("hidden_activation", "gelu_pytorch_tanh"),
        mlp_bias=False,
        qk_norm=True,
        norm_offset=1.0,
        sandwich_norms=True,
        sliding_window=fields.positive("sliding_window", 4096),
        sliding_layers=_sliding_layers(fields, lambda layer: (layer + 1) % pattern != 0),
        attention_scale=fields.number("query_pre_attn_scalar", 256) ** -0.5,
        logit_softcap=cap,
        embedding_multiplier=fields.positive("hidden_size") ** 0.5,
    )


def _gemma3_rotaries(fields: Fields) -> tuple[Any, Any]:
    """Of the layers that see everything, and of those with a window."""
    both = fields.object("rope_parameters", None)
    if both is None:
        local = Fields({"rope_theta": fields.number("rope_local_base_freq", 1e4)}, fields.where)
        return read_rotary(fields, theta=1e6), read_rotary(fields, parameters=local)
    full, sliding = (
        both.object(name, Fields({}, both.where))
        for name in ("full_attention", "sliding_attention")
    )
    return (
        read_rotary(fields, theta=1e6, parameters=full),
        read_rotary(fields, theta=1e4, parameters=sliding),
    )


def _mixtral(fields: Fields) -> DecoderConfig:
    hidden_dim = fields.positive("intermediate_size")
    return _always_sliding(
        fields,
        rotary=read_rotary(fields, theta=1e6),
        norm_eps=fields.number("rms_norm_eps", 1e-5),
        attention_bias=False,
        attention_out_bias=False,
        mlp_bias=False,
        experts=Experts(
            count=fields.positive("num_local_experts", 8),
            per_token=fields.positive("num_experts_per_tok", 2),
            hidden_dim=hidden_dim,
        ),
    )


def _qwen3_moe(fields: Fields) -> DecoderConfig:
    window = fields.positive("sliding_window", 4096)
    has_window = fields.flag("use_sliding_window", False)
    step = fields.positive("decoder_sparse_step", 1)
    dense = set(fields.list("mlp_only_layers", []))
    layers = _all_layers(fields)
    return _llama(
        fields,
        qk_norm=True,
        mlp_bias=False,
        sliding_window=window if has_window else None,
        sliding_layers=layers if has_window else (),
        experts=Experts(
            count=fields.positive("num_experts", fields.positive("num_local_experts", 128)),
            per_token=fields.positive("num_experts_per_tok", 8),
            hidden_dim=fields.positive("moe_intermediate_size", 768),
            normalize=fields.flag("norm_topk_prob", False),
        ),
        dense_layers=tuple(i for i in layers if i in dense or (i + 1) % step),
    )


def _architecture(
    name: str,
    model_type: str,
    read_config: Callable[[Fields], DecoderConfig],
    rows: tuple[Row, ...] = LLAMA,
) -> Architecture:
    return Architecture(
        name=name,
        model_type=model_type,
        family="decoder",
        task="text-generation",
        read_config=read_config,
        model=Decoder,
        axes=AXES,
        sharing=SHARING,
        keys=partial(key_table, rows),
    )


ARCHITECTURES = (
    _architecture("LlamaForCausalLM", "llama", _llama),
    _architecture("MistralForCausalLM", "mistral", _mistral),
    _architecture("Qwen2ForCausalLM", "qwen2", _qwen2),
    _architecture("Qwen3ForCausalLM", "qwen3", _qwen3),
    _architecture("GraniteForCausalLM", "granite", _granite),
    _architecture("Phi3ForCausalLM", "phi3", _phi3, PHI3),
    _architecture("SmolLM3ForCausalLM", "smollm3", _smollm3),
    _architecture("Gemma3ForCausalLM", "gemma3_text", _gemma3, GEMMA3),
    _architecture("MixtralForCausalLM", "mixtral", _mixtral, MIXTRAL),
    _architecture("Qwen3MoeForCausalLM", "qwen3_moe", _qwen3_moe, QWEN3_MOE),
)
