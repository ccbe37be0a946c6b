"""The families of decoders: from a family's config.json and key table to the common model."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from models.architecture import Architecture
from models.decoder.config import DecoderConfig
from models.decoder.model import Decoder
from models.decoder.padding import padded
from models.decoder.sharing import SHARING
from models.decoder.text_model import TextDecoder
from models.decoder.weights import (
    GEMMA3,
    GPT2_LAYOUT,
    GPT_NEOX_LAYOUT,
    GPT_OSS,
    LLAMA4_LAYOUT,
    LLAMA_LAYOUT,
    MIXTRAL,
    PHI3,
    PHI_LAYOUT,
    QWEN3_MOE,
    Layout,
)
from models.errors import ConfigError
from models.layers.moe import ClampedSwish, Experts
from models.layers.temperature import Temperature
from models.layers.text_heads import CLASSES, TextHeadConfig
from models.published.defaults import DEFAULTS
from models.settings import layers_of_kind, read_layers, read_settings, write_settings
from models.weights.fields import Fields, count_labels, read_dtype
from models.weights.rotary_fields import read_rotaries, read_rotary


def _llama(fields: Fields, **changes: Any) -> DecoderConfig:
    """The fields that the family knows; `changes` are what does not follow from one of them."""
    dtype = read_dtype(fields)
    dim, num_heads = fields.positive("hidden_size"), fields.positive("num_attention_heads")
    derived = {"num_kv_heads": num_heads, "head_dim": dim // num_heads}
    settings = read_settings(DecoderConfig, fields, otherwise=derived, given=changes)
    if "rotary" not in settings:
        settings["rotary"] = read_rotary(fields)
    return DecoderConfig(dtype=dtype, param_dtype=dtype, **settings)


def llama_json(config: DecoderConfig) -> dict[str, Any]:
    """The config.json of a Llama with these dimensions.

    Raises ConfigError if the config has a feature that Llama lacks.
    """
    values = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        **{k: v for k, v in write_settings(config).items() if k in DEFAULTS["llama"].config},
        "rope_theta": config.rotary.theta,
        "dtype": config.param_dtype,
    }
    again = _llama(Fields(values, "config").of_family(DEFAULTS["llama"]))
    if replace(again, dtype=config.dtype) != config:
        raise ConfigError(f"these settings cannot be expressed in Llama's config.json: {config}")
    return values


def _no_rotary_layers(fields: Fields) -> tuple[int, ...]:
    """Those with a zero in `no_rope_layers`, or every so many of `no_rope_layer_interval`."""
    interval = fields.positive("no_rope_layer_interval")
    layers = tuple(read_layers(fields))
    turns = fields.list("no_rope_layers", [(i + 1) % interval != 0 for i in layers])
    if len(turns) < len(layers):
        raise fields.fail("no_rope_layers", "it must have one number for each layer")
    return tuple(i for i in layers if not turns[i])


def _always_sliding(fields: Fields, **changes: Any) -> DecoderConfig:
    """Every layer has the window of `sliding_window`, if that is not null."""
    window = fields.positive("sliding_window", None)
    layers = () if window is None else tuple(read_layers(fields))
    return _llama(fields, sliding_window=window, sliding_layers=layers, **changes)


def _qwen(fields: Fields, **changes: Any) -> DecoderConfig:
    """The window is off unless `use_sliding_window`; then it spares the first layers."""
    window = fields.positive("sliding_window", None)
    if not fields.flag("use_sliding_window"):
        return _llama(fields, **changes)
    spared = fields.integer("max_window_layers")
    layers = layers_of_kind(fields, lambda layer: window is not None and layer >= spared)
    return _llama(fields, sliding_window=window, sliding_layers=layers, **changes)


def _qwen2(fields: Fields) -> DecoderConfig:
    return _qwen(fields, attention_bias=True)


def _qwen3(fields: Fields) -> DecoderConfig:
    return _qwen(fields, qk_norm=True)


def _smollm3(fields: Fields) -> DecoderConfig:
    still = _no_rotary_layers(fields)
    window = fields.positive("sliding_window", None)
    has_window = window is not None and fields.flag("use_sliding_window")
    sliding = layers_of_kind(fields, lambda layer: has_window and layer in still)
    return _llama(
        fields,
        no_rotary_layers=still,
        sliding_window=window,
        sliding_layers=sliding,
    )


def _gemma3(fields: Fields) -> DecoderConfig:
    pattern = fields.positive("sliding_window_pattern")
    rotary, sliding_rotary = read_rotaries(fields, local=fields.number("rope_local_base_freq"))
    return _llama(
        fields,
        rotary=rotary,
        sliding_rotary=sliding_rotary,
        qk_norm=True,
        norm_offset=1.0,
        sandwich_norms=True,
        sliding_window=fields.positive("sliding_window"),
        sliding_layers=layers_of_kind(fields, lambda layer: (layer + 1) % pattern != 0),
        attention_scale=fields.positive_number("query_pre_attn_scalar") ** -0.5,
        embedding_multiplier=fields.positive("hidden_size") ** 0.5,
    )


def _experts(fields: Fields, width: str = "intermediate_size", **others: Any) -> Experts:
    """The experts, each as wide as a field says."""
    return Experts(
        count=fields.positive("num_local_experts"),
        per_token=fields.positive("num_experts_per_tok"),
        hidden_dim=fields.positive(width),
        **others,
    )


def _mixtral(fields: Fields) -> DecoderConfig:
    return _always_sliding(fields, experts=_experts(fields))


def _qwen3_moe(fields: Fields) -> DecoderConfig:
    window = fields.positive("sliding_window", None)
    has_window = window is not None and fields.flag("use_sliding_window")
    step = fields.positive("decoder_sparse_step")
    dense = set(fields.integers("mlp_only_layers", ()))
    layers = tuple(read_layers(fields))
    return _llama(
        fields,
        qk_norm=True,
        sliding_window=window if has_window else None,
        sliding_layers=layers if has_window else (),
        experts=_experts(fields, "moe_intermediate_size", normalize=fields.flag("norm_topk_prob")),
        dense_layers=tuple(i for i in layers if i in dense or (i + 1) % step),
    )


def _gpt_oss(fields: Fields) -> DecoderConfig:
    layers = layers_of_kind(fields, lambda layer: layer % 2 == 0)
    return _llama(
        fields,
        attention_sinks=True,
        sliding_window=fields.positive("sliding_window", None),
        sliding_layers=layers,
        attention_out_bias=fields.flag("attention_bias"),
        experts=_experts(
            fields,
            biases=True,
            clamped=ClampedSwish(
                fields.positive_number("swiglu_alpha"), fields.positive_number("swiglu_limit")
            ),
        ),
    )


_CHUNKED = "chunked_attention"


def _llama4(fields: Fields) -> DecoderConfig:
    layers, still = tuple(read_layers(fields)), _no_rotary_layers(fields)
    step = fields.positive("interleave_moe_layer_step")
    sparse = set(fields.integers("moe_layers", range(step - 1, len(layers), step)))
    rotary, unit_norm = read_rotary(fields), None
    if fields.flag("use_qk_norm"):
        # It follows the rotation there, whose magnitude it undoes: only its eps is felt otherwise.
        unit_norm = fields.number("rms_norm_eps") / rotary.magnitude**2
        rotary = replace(rotary, magnitude=1.0)
    return _llama(
        fields,
        rotary=rotary,
        qk_unit_norm=unit_norm,
        no_rotary_layers=still,
        chunked_layers=layers_of_kind(fields, lambda layer: layer not in still, _CHUNKED),
        temperature=(
            Temperature(fields.positive("floor_scale"), fields.number("attn_scale"))
            if fields.flag("attn_temperature_tuning")
            else None
        ),
        hidden_dim=fields.positive("intermediate_size_mlp"),
        experts=_experts(
            fields, gated_inputs=True, shared_dim=fields.positive("intermediate_size")
        ),
        dense_layers=tuple(i for i in layers if i not in sparse),
    )


def _layer_norms(fields: Fields, **changes: Any) -> DecoderConfig:
    """Before Llama: LayerNorm, and one projection in the feed-forward block, with biases."""
    return _llama(fields, layer_norm=True, gated_mlp=False, mlp_bias=True, **changes)


def _gpt2(fields: Fields) -> DecoderConfig:
    return _layer_norms(
        fields,
        hidden_dim=fields.positive("intermediate_size", 4 * fields.positive("hidden_size")),
        attention_bias=True,
        attention_out_bias=True,
        attention_scale=None if fields.flag("scale_attn_weights") else 1.0,
        learned_positions=True,
        no_rotary_layers=tuple(read_layers(fields)),
    )


def _gpt_neox(fields: Fields) -> DecoderConfig:
    return _layer_norms(fields, parallel_residual=fields.flag("use_parallel_residual"))


def _phi(fields: Fields) -> DecoderConfig:
    return _layer_norms(
        fields,
        attention_bias=True,
        attention_out_bias=True,
        qk_norm=fields.flag("qk_layernorm"),
        parallel_residual=True,
        shared_norm=True,
        head_bias=True,
    )


def _architecture(
    name: str,
    model_type: str,
    read_config: Callable[[Fields], DecoderConfig],
    layout: Layout = LLAMA_LAYOUT,
) -> Architecture:
    return Architecture(
        name=name,
        model_type=model_type,
        family="decoder",
        task="text-generation",
        read_config=read_config,
        model=Decoder,
        sharing=SHARING,
        keys=layout.key_table,
        refine=layout.refine,
        padded=padded,
    )


HEADS = ("feature-extraction", "text-classification", "token-classification")


def _with_head(
    language_model: Architecture, classes: str, task: str, layout: Layout
) -> Architecture:
    """The decoder of a language model with the head for another task."""

    def read_config(fields: Fields) -> DecoderConfig:
        head = TextHeadConfig(
            task,
            num_labels=count_labels(fields),
            transform=False,
            pooling="last",
            output_bias=task == "token-classification",
        )
        config: DecoderConfig = language_model.read_config(fields)
        return replace(config, head=head, tie_embeddings=True, head_bias=False)

    return replace(
        language_model,
        name=classes + CLASSES[task],
        task=task,
        read_config=read_config,
        model=TextDecoder,
        sharing=None,
        padded=lambda config, mesh: config,
        keys=layout.head_table,
        refine=lambda config, tensors: config,
    )


_LANGUAGE_MODELS = (
    _architecture("LlamaForCausalLM", "llama", _llama),
    _architecture("MistralForCausalLM", "mistral", _always_sliding),
    _architecture("Qwen2ForCausalLM", "qwen2", _qwen2),
    _architecture("Qwen3ForCausalLM", "qwen3", _qwen3),
    _architecture("GraniteForCausalLM", "granite", _llama),
    _architecture("Phi3ForCausalLM", "phi3", _always_sliding, Layout(PHI3)),
    _architecture("SmolLM3ForCausalLM", "smollm3", _smollm3),
    _architecture("Gemma3ForCausalLM", "gemma3_text", _gemma3, Layout(GEMMA3)),
    _architecture("MixtralForCausalLM", "mixtral", _mixtral, Layout(MIXTRAL)),
    _architecture("Qwen3MoeForCausalLM", "qwen3_moe", _qwen3_moe, Layout(QWEN3_MOE)),
    _architecture("GPT2LMHeadModel", "gpt2", _gpt2, GPT2_LAYOUT),
    _architecture("GPTNeoXForCausalLM", "gpt_neox", _gpt_neox, GPT_NEOX_LAYOUT),
    _architecture("GptOssForCausalLM", "gpt_oss", _gpt_oss, Layout(GPT_OSS)),
    _architecture("Llama4ForCausalLM", "llama4_text", _llama4, LLAMA4_LAYOUT),
    _architecture("PhiForCausalLM", "phi", _phi, PHI_LAYOUT),
)

_CLASSIFIERS = (  # what the names of their classes begin with, their keys, and their heads
    ("LlamaForCausalLM", "Llama", LLAMA_LAYOUT, HEADS),
    ("MistralForCausalLM", "Mistral", LLAMA_LAYOUT, HEADS),
    ("Qwen2ForCausalLM", "Qwen2", LLAMA_LAYOUT, HEADS),
    ("Qwen3ForCausalLM", "Qwen3", LLAMA_LAYOUT, HEADS),
    ("GraniteForCausalLM", "Granite", LLAMA_LAYOUT, HEADS[:1]),
    ("Phi3ForCausalLM", "Phi3", Layout(PHI3), HEADS),
    ("SmolLM3ForCausalLM", "SmolLM3", LLAMA_LAYOUT, HEADS),
    ("Gemma3ForCausalLM", "Gemma3Text", Layout(GEMMA3), HEADS[:2]),
    ("MixtralForCausalLM", "Mixtral", Layout(MIXTRAL), HEADS),
    ("Qwen3MoeForCausalLM", "Qwen3Moe", Layout(QWEN3_MOE), HEADS),
    ("GPT2LMHeadModel", "GPT2", GPT2_LAYOUT, HEADS),
    ("GPTNeoXForCausalLM", "GPTNeoX", GPT_NEOX_LAYOUT, HEADS),
    ("GptOssForCausalLM", "GptOss", Layout(GPT_OSS), HEADS),
    ("PhiForCausalLM", "Phi", PHI_LAYOUT, HEADS),
)
_BY_NAME = {architecture.name: architecture for architecture in _LANGUAGE_MODELS}
ARCHITECTURES = (
    *_LANGUAGE_MODELS,
    *(
        _with_head(_BY_NAME[name], classes, task, layout)
        for name, classes, layout, tasks in _CLASSIFIERS
        for task in tasks
    ),
)
