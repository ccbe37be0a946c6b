"""The families of decoders: from a family's config.json and key table to the common model."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from models.architecture import Architecture
from models.decoder.config import DecoderConfig
from models.decoder.model import Decoder
from models.decoder.padding import padded
from models.decoder.sharing import SHARING
from models.decoder.text_model import TextDecoder
from models.decoder.weights import (
    DEEPSEEK,
    FALCON_LAYOUT,
    GEMMA2,
    GLM,
    GLM4,
    GPT2_LAYOUT,
    GPT_NEOX_LAYOUT,
    GPT_OSS,
    GRANITE_MOE,
    LLAMA,
    LLAMA4_LAYOUT,
    LLAMA_LAYOUT,
    MINICPM3,
    MIXTRAL,
    OLMO2,
    PHI3,
    PHI_LAYOUT,
    QWEN3_MOE,
    STARCODER2,
    Layout,
)
from models.errors import ConfigError
from models.layers.latent import Latent
from models.layers.moe import ClampedSwish, Experts
from models.layers.temperature import Temperature
from models.layers.text_heads import CLASSES, TextHeadConfig
from models.parallel.tensor import Sharing
from models.published.defaults import DEFAULTS
from models.settings import layers_of_kind, read_layers, read_settings, write_settings
from models.weights.fields import Fields, count_labels, read_dtype
from models.weights.rotary_fields import read_rotaries, read_rotary, score_factor


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
    """The layers with a zero in `no_rope_layers`, or every so many of `no_rope_layer_interval`."""
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
    return _qwen(fields, qk_norm="shared")


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


def _gemma(fields: Fields, **changes: Any) -> DecoderConfig:
    return _llama(
        fields,
        norm_offset=1.0,
        embedding_multiplier=fields.positive("hidden_size") ** 0.5,
        **changes,
    )


def _gemma2(fields: Fields, pattern: int = 2, **changes: Any) -> DecoderConfig:
    """Every `pattern`th layer sees everything."""
    return _gemma(
        fields,
        sandwich_norms=True,
        sliding_window=fields.positive("sliding_window"),
        sliding_layers=layers_of_kind(fields, lambda layer: (layer + 1) % pattern != 0),
        attention_scale=fields.positive_number("query_pre_attn_scalar") ** -0.5,
        **changes,
    )


def _gemma3(fields: Fields) -> DecoderConfig:
    rotary, sliding_rotary = read_rotaries(fields, local=fields.number("rope_local_base_freq"))
    return _gemma2(
        fields,
        fields.positive("sliding_window_pattern"),
        rotary=rotary,
        sliding_rotary=sliding_rotary,
        qk_norm="shared",
    )


def _olmo2(fields: Fields) -> DecoderConfig:
    return _llama(fields, pre_norms=False, sandwich_norms=True, qk_norm="jointly")


def _cohere(fields: Fields, **changes: Any) -> DecoderConfig:
    return _llama(
        fields,
        layer_norm=True,
        norm_bias=False,
        parallel_residual=True,
        shared_norm=True,
        qk_norm="own" if fields.flag("use_qk_norm", False) else None,
        logit_divisor=1 / fields.positive_number("logit_scale"),
        **changes,
    )


def _cohere2(fields: Fields) -> DecoderConfig:
    """Layers that see everything do not know positions."""
    pattern = fields.positive("sliding_window_pattern")
    sliding = layers_of_kind(fields, lambda layer: (layer + 1) % pattern != 0)
    return _cohere(
        fields,
        sliding_window=fields.positive("sliding_window"),
        sliding_layers=sliding,
        no_rotary_layers=tuple(i for i in read_layers(fields) if i not in sliding),
    )


def _glm(fields: Fields) -> DecoderConfig:
    return _llama(fields, attention_out_bias=False)


def _glm4(fields: Fields) -> DecoderConfig:
    return _llama(fields, attention_out_bias=False, sandwich_norms=True)


def _seed_oss(fields: Fields) -> DecoderConfig:
    return _llama(fields, attention_out_bias=fields.flag("attention_out_bias"))


def _internlm3(fields: Fields) -> DecoderConfig:
    """Biases of the outputs are those of the feed-forward blocks."""
    return _llama(fields, attention_out_bias=fields.flag("mlp_bias"))


def _experts(fields: Fields, width: str = "intermediate_size", **others: Any) -> Experts:
    """The experts, each as wide as a field says."""
    return Experts(
        count=fields.positive("num_local_experts"),
        per_token=fields.positive("num_experts_per_tok"),
        hidden_dim=fields.positive(width),
        **others,
    )


def _granite_moe(fields: Fields) -> DecoderConfig:
    return _llama(fields, experts=_experts(fields))


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
        qk_norm="shared",
        sliding_window=window if has_window else None,
        sliding_layers=layers if has_window else (),
        experts=_experts(fields, "moe_intermediate_size", normalize=fields.flag("norm_topk_prob")),
        dense_layers=tuple(i for i in layers if i in dense or (i + 1) % step),
    )


def _latent(fields: Fields, **changes: Any) -> DecoderConfig:
    turned = fields.positive("qk_rope_head_dim")
    head_dim = turned + fields.positive("qk_nope_head_dim")
    dim, num_heads = fields.positive("hidden_size"), fields.positive("num_attention_heads")
    widths = Latent(
        dim=fields.positive("kv_lora_rank"),
        query_dim=fields.positive("q_lora_rank", None),
        turned_dim=turned,
        value_dim=fields.positive("v_head_dim", dim // num_heads),
    )
    return _llama(
        fields,
        latent=widths,
        head_dim=head_dim,
        num_kv_heads=num_heads,
        attention_scale=score_factor(fields) / head_dim**0.5,
        **changes,
    )


def _minicpm3(fields: Fields) -> DecoderConfig:
    dim, layers = fields.positive("hidden_size"), len(read_layers(fields))
    depth = fields.positive_number("scale_depth", layers**0.5)
    return _latent(
        fields,
        residual_multiplier=depth / layers**0.5,
        logit_divisor=dim / fields.positive("dim_model_base", dim),
    )


def _deepseek(fields: Fields, **router: Any) -> DecoderConfig:
    experts = _experts(
        fields,
        "moe_intermediate_size",
        normalize=fields.flag("norm_topk_prob"),
        shared_dim=fields.positive("moe_intermediate_size") * fields.positive("n_shared_experts"),
        factor=fields.positive_number("routed_scaling_factor"),
        **router,
    )
    dense = read_layers(fields)[: fields.integer("first_k_dense_replace")]
    return _latent(fields, experts=experts, dense_layers=tuple(dense))


def _groups(fields: Fields) -> dict[str, int]:
    groups = fields.positive("n_group", 1)
    return {"groups": groups, "groups_per_token": fields.positive("topk_group", groups)}


def _deepseek_v2(fields: Fields) -> DecoderConfig:
    """The best scores of a group are its own; `norm_topk_prob` is not looked at."""
    fields.refuse(
        "topk_method", "greedy", "group_limited_greedy", why="choose greedy or group_limited_greedy"
    )
    limited = fields.text("topk_method") == "group_limited_greedy"
    return _deepseek(fields, **(_groups(fields) if limited else {}))


def _deepseek_v3(fields: Fields) -> DecoderConfig:
    return _deepseek(fields, sigmoid=True, corrected=True, scores_of_group=2, **_groups(fields))


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
    """A config as before Llama: LayerNorm, and a feed-forward block of one projection, biased."""
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


def _starcoder2(fields: Fields) -> DecoderConfig:
    """Every linear layer has a bias, or none has."""
    config = _always_sliding(fields, layer_norm=True, gated_mlp=False)
    return replace(config, mlp_bias=config.attention_bias)


def _falcon(fields: Fields) -> DecoderConfig:
    is_new, heads = fields.flag("new_decoder_architecture"), fields.positive("num_attention_heads")
    parallel = is_new or fields.flag("parallel_attn")
    norms = fields.positive("num_ln_in_parallel_attn", 2 if is_new else 1)
    kv_heads = 1 if fields.flag("multi_query") else heads
    config = _llama(
        fields,
        layer_norm=True,
        gated_mlp=False,
        hidden_dim=fields.positive("intermediate_size", 4 * fields.positive("hidden_size")),
        num_kv_heads=fields.positive("num_key_value_heads", heads) if is_new else kv_heads,
        parallel_residual=parallel,
        shared_norm=parallel and norms == 1,
    )
    return replace(config, mlp_bias=config.attention_bias)


def _gpt_neox(fields: Fields) -> DecoderConfig:
    return _layer_norms(fields, parallel_residual=fields.flag("use_parallel_residual"))


def _phi(fields: Fields) -> DecoderConfig:
    return _layer_norms(
        fields,
        attention_bias=True,
        attention_out_bias=True,
        qk_norm="shared" if fields.flag("qk_layernorm") else None,
        parallel_residual=True,
        shared_norm=True,
        head_bias=True,
    )


HEADS = ("feature-extraction", "text-classification", "token-classification")


class _Family(NamedTuple):
    """Decoders of one model type."""

    name: str  # of the class that writes texts
    model_type: str
    read_config: Callable[[Fields], DecoderConfig]
    layout: Layout = LLAMA_LAYOUT
    heads: Sequence[str] = HEADS  # what transformers has other classes for, …
    classes: str | None = None  # … whose names begin with this, where the first one's does not
    sharing: Sharing | None = SHARING

    def language_model(self) -> Architecture:
        return Architecture(
            name=self.name,
            model_type=self.model_type,
            family="decoder",
            task="text-generation",
            read_config=self.read_config,
            model=Decoder,
            sharing=self.sharing,
            keys=self.layout.key_table,
            refine=self.layout.refine,
            padded=padded,
        )

    def headed(self, task: str) -> Architecture:
        """The decoder with the head for another task."""

        def read_config(fields: Fields) -> DecoderConfig:
            head = TextHeadConfig(
                task,
                num_labels=count_labels(fields),
                transform=False,
                pooling="last",
                output_bias=task == "token-classification",
            )
            config = self.read_config(fields)
            return replace(config, head=head, tie_embeddings=True, head_bias=False)

        classes = self.classes or self.name.removesuffix("ForCausalLM")
        return Architecture(
            name=classes + CLASSES[task],
            model_type=self.model_type,
            family="decoder",
            task=task,
            read_config=read_config,
            model=TextDecoder,
            keys=self.layout.head_table,
        )


_FAMILIES = (
    _Family("LlamaForCausalLM", "llama", _llama),
    _Family("MistralForCausalLM", "mistral", _always_sliding),
    _Family("Qwen2ForCausalLM", "qwen2", _qwen2),
    _Family("Qwen3ForCausalLM", "qwen3", _qwen3),
    _Family("GraniteForCausalLM", "granite", _llama, heads=HEADS[:1]),
    _Family("Phi3ForCausalLM", "phi3", _always_sliding, Layout(PHI3)),
    _Family("SmolLM3ForCausalLM", "smollm3", _smollm3),
    _Family("GemmaForCausalLM", "gemma", _gemma),
    _Family("Gemma2ForCausalLM", "gemma2", _gemma2, Layout(GEMMA2)),
    _Family("Gemma3ForCausalLM", "gemma3_text", _gemma3, Layout(GEMMA2), HEADS[:2], "Gemma3Text"),
    _Family("Olmo2ForCausalLM", "olmo2", _olmo2, Layout(OLMO2), HEADS[:2], sharing=None),
    _Family("CohereForCausalLM", "cohere", _cohere, Layout(LLAMA, turns=True), HEADS[:1]),
    _Family("Cohere2ForCausalLM", "cohere2", _cohere2, Layout(LLAMA, turns=True), HEADS[:1]),
    _Family("GlmForCausalLM", "glm", _glm, Layout(GLM, turns=True)),
    _Family("Glm4ForCausalLM", "glm4", _glm4, Layout(GLM4, turns=True)),
    _Family("SeedOssForCausalLM", "seed_oss", _seed_oss),
    _Family("InternLM3ForCausalLM", "internlm3", _internlm3, heads=()),
    _Family("Starcoder2ForCausalLM", "starcoder2", _starcoder2, Layout(STARCODER2)),
    _Family("MixtralForCausalLM", "mixtral", _mixtral, Layout(MIXTRAL)),
    _Family("GraniteMoeForCausalLM", "granitemoe", _granite_moe, Layout(GRANITE_MOE), HEADS[:1]),
    _Family("Qwen3MoeForCausalLM", "qwen3_moe", _qwen3_moe, Layout(QWEN3_MOE)),
    _Family(
        "DeepseekV2ForCausalLM", "deepseek_v2", _deepseek_v2, DEEPSEEK, HEADS[:2], sharing=None
    ),
    _Family("DeepseekV3ForCausalLM", "deepseek_v3", _deepseek_v3, DEEPSEEK, sharing=None),
    _Family("MiniCPM3ForCausalLM", "minicpm3", _minicpm3, MINICPM3, HEADS[:2], sharing=None),
    _Family("GPT2LMHeadModel", "gpt2", _gpt2, GPT2_LAYOUT, classes="GPT2"),
    _Family("GPTNeoXForCausalLM", "gpt_neox", _gpt_neox, GPT_NEOX_LAYOUT),
    _Family("FalconForCausalLM", "falcon", _falcon, FALCON_LAYOUT),
    _Family("GptOssForCausalLM", "gpt_oss", _gpt_oss, Layout(GPT_OSS)),
    _Family("Llama4ForCausalLM", "llama4_text", _llama4, LLAMA4_LAYOUT, heads=()),
    _Family("PhiForCausalLM", "phi", _phi, PHI_LAYOUT),
)
ARCHITECTURES = (
    *(family.language_model() for family in _FAMILIES),
    *(family.headed(task) for family in _FAMILIES for task in family.heads),
)
