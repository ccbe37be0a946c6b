"""Key tables of decoders: the tensors of Hugging Face checkpoints and their parameters."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from models.decoder.config import DecoderConfig
from models.layers.narrow import narrow_name
from models.weights.narrow import PACKED_BLOCKS, SCALES
from models.weights.rows import attention_rows, dense_rows, fused_rows, norm_rows
from models.weights.table import KeyTable, Row, row
from models.weights.tied import stored_apart
from models.weights.transforms import (
    ALTERNATING,
    FLAT,
    KERNEL,
    OUTPUT_KERNEL,
    SAME,
    Alternating,
    Fused,
    FusedByHeads,
    Kernel,
    Turned,
)

_KEY, _BLOCK = "model.layers.{i}", "blocks.{i}"
_ATTENTION, _MLP = f"{_BLOCK}.attention", f"{_BLOCK}.mlp"

_GATED = ("gate", "up", "down")

LLAMA: tuple[Row, ...] = (
    row("model.embed_tokens.weight", "embedding.table"),
    *attention_rows(f"{_KEY}.self_attn", _ATTENTION, output="o_proj"),
    row(f"{_KEY}.self_attn.q_norm.weight", f"{_ATTENTION}.query_norm.scale"),
    row(f"{_KEY}.self_attn.k_norm.weight", f"{_ATTENTION}.key_norm.scale"),
    row(f"{_KEY}.self_attn.k_scale", f"{_ATTENTION}.cache_scales.key"),
    row(f"{_KEY}.self_attn.v_scale", f"{_ATTENTION}.cache_scales.value"),
    *(line for n in _GATED for line in dense_rows(f"{_KEY}.mlp.{n}_proj", f"{_MLP}.{n}")),
    row(f"{_KEY}.input_layernorm.weight", f"{_BLOCK}.attention_norm.scale"),
    row(f"{_KEY}.post_attention_layernorm.weight", f"{_BLOCK}.mlp_norm.scale"),
    row("model.norm.weight", "norm.scale"),
    row("lm_head.weight", "head.table"),
)

GLM = (
    *fused_rows(f"{_KEY}.mlp.gate_up_proj", [f"{_MLP}.{name}" for name in ("gate", "up")]),
    *LLAMA,
)

PHI3 = (
    *fused_rows(
        f"{_KEY}.self_attn.qkv_proj", [f"{_ATTENTION}.{name}" for name in ("query", "key", "value")]
    ),
    *GLM,
)

GEMMA2 = (
    row(f"{_KEY}.post_attention_layernorm.weight", f"{_BLOCK}.attention_out_norm.scale"),
    row(f"{_KEY}.pre_feedforward_layernorm.weight", f"{_BLOCK}.mlp_norm.scale"),
    row(f"{_KEY}.post_feedforward_layernorm.weight", f"{_BLOCK}.mlp_out_norm.scale"),
    *LLAMA,
)

OLMO2 = (
    row(f"{_KEY}.self_attn.q_norm.weight", f"{_ATTENTION}.query_norm.scale", FLAT),
    row(f"{_KEY}.self_attn.k_norm.weight", f"{_ATTENTION}.key_norm.scale", FLAT),
    *GEMMA2,
)

GLM4 = (
    row(f"{_KEY}.post_self_attn_layernorm.weight", f"{_BLOCK}.attention_out_norm.scale"),
    row(f"{_KEY}.post_mlp_layernorm.weight", f"{_BLOCK}.mlp_out_norm.scale"),
    *GLM,
)

STARCODER2 = (
    *norm_rows(f"{_KEY}.input_layernorm", f"{_BLOCK}.attention_norm"),
    *norm_rows(f"{_KEY}.post_attention_layernorm", f"{_BLOCK}.mlp_norm"),
    *norm_rows("model.norm", "norm"),
    *dense_rows(f"{_KEY}.mlp.c_fc", f"{_MLP}.up"),
    *dense_rows(f"{_KEY}.mlp.c_proj", f"{_MLP}.down"),
    *LLAMA,
)

_EACH_EXPERT = Kernel(batch_axes=1)


def _stacked_rows(router: str, gate_up: str, down: str) -> Iterator[Row]:
    """A tensor for all experts."""
    yield row(f"{_KEY}.{router}", f"{_MLP}.router", KERNEL)
    kernels = [f"{_MLP}.experts_gate", f"{_MLP}.experts_up"]
    yield row(f"{_KEY}.{gate_up}", kernels, Fused(_EACH_EXPERT, axis=1))
    yield row(f"{_KEY}.{down}", f"{_MLP}.experts_down", _EACH_EXPERT)


def _expert_rows(mixture: str, names: tuple[str, str, str]) -> Iterator[Row]:
    """A tensor for each expert; the names are those of `_GATED`."""
    yield row(f"{mixture}.gate.weight", f"{_MLP}.router", KERNEL)
    for theirs, ours in zip(names, _GATED, strict=True):
        yield row(f"{mixture}.experts.{{e}}.{theirs}.weight", f"{_MLP}.experts_{ours}", KERNEL)
    # How transformers 5 holds the experts in memory, and saves them if asked to.
    yield from _stacked_rows("mlp.gate.weight", "mlp.experts.gate_up_proj", "mlp.experts.down_proj")
    yield from LLAMA


MIXTRAL = tuple(_expert_rows(f"{_KEY}.block_sparse_moe", ("w1", "w3", "w2")))
QWEN3_MOE = tuple(_expert_rows(f"{_KEY}.mlp", ("gate_proj", "up_proj", "down_proj")))
_GRANITE = "block_sparse_moe"
GRANITE_MOE = (
    *_stacked_rows(
        f"{_GRANITE}.router.layer.weight",
        f"{_GRANITE}.input_linear.weight",
        f"{_GRANITE}.output_linear.weight",
    ),
    *_stacked_rows(
        f"{_GRANITE}.router.weight",
        f"{_GRANITE}.experts.gate_up_proj",
        f"{_GRANITE}.experts.down_proj",
    ),
    *LLAMA,
)


def _mxfp4_rows(name: str, kernels: Sequence[str]) -> tuple[Row, Row]:
    """The bytes and the scales of narrow experts, whose outputs alternate if there are several."""
    key = f"{_KEY}.mlp.experts.{name}"
    narrow = [narrow_name(f"{_MLP}.{kernel}") for kernel in kernels]
    return (
        row(f"{key}_blocks", [f"{n}.packed" for n in narrow], Alternating(PACKED_BLOCKS, axis=1)),
        row(f"{key}_scales", [f"{n}.scale" for n in narrow], Alternating(SCALES, axis=1)),
    )


GPT_OSS = (
    row(f"{_KEY}.mlp.router.weight", f"{_MLP}.router", KERNEL),
    row(f"{_KEY}.mlp.router.bias", f"{_MLP}.router_bias"),
    row(
        f"{_KEY}.mlp.experts.gate_up_proj",
        [f"{_MLP}.experts_gate", f"{_MLP}.experts_up"],
        ALTERNATING,
    ),
    row(
        f"{_KEY}.mlp.experts.gate_up_proj_bias",
        [f"{_MLP}.experts_gate_bias", f"{_MLP}.experts_up_bias"],
        ALTERNATING,
    ),
    row(f"{_KEY}.mlp.experts.down_proj", f"{_MLP}.experts_down"),
    *_mxfp4_rows("gate_up_proj", ("experts_gate", "experts_up")),
    *_mxfp4_rows("down_proj", ("experts_down",)),
    row(f"{_KEY}.mlp.experts.down_proj_bias", f"{_MLP}.experts_down_bias"),
    row(f"{_KEY}.self_attn.sinks", f"{_ATTENTION}.sinks"),
    *LLAMA,
)

_LLAMA4_MLP = f"{_KEY}.feed_forward"
LLAMA4 = (
    row(f"{_LLAMA4_MLP}.router.weight", f"{_MLP}.router", KERNEL),
    row(
        f"{_LLAMA4_MLP}.experts.gate_up_proj",
        [f"{_MLP}.experts_gate", f"{_MLP}.experts_up"],
        Fused(SAME, axis=2),
    ),
    row(f"{_LLAMA4_MLP}.experts.down_proj", f"{_MLP}.experts_down"),
    *(
        row(f"{_LLAMA4_MLP}{key}.{name}_proj.weight", f"{_MLP}{path}.{name}.kernel", KERNEL)
        for key, path in ((".shared_expert", ".shared"), ("", ""))
        for name in _GATED
    ),
    *LLAMA,
)

_PHI_ATTENTION, _PHI_MLP = f"{_KEY}.self_attn", f"{_KEY}.mlp"
PHI = (
    *norm_rows(f"{_KEY}.input_layernorm", f"{_BLOCK}.attention_norm"),
    *norm_rows("model.final_layernorm", "norm"),
    *norm_rows(f"{_PHI_ATTENTION}.q_layernorm", f"{_ATTENTION}.query_norm"),
    *norm_rows(f"{_PHI_ATTENTION}.k_layernorm", f"{_ATTENTION}.key_norm"),
    *dense_rows(f"{_PHI_ATTENTION}.dense", f"{_ATTENTION}.output", OUTPUT_KERNEL),
    *dense_rows(f"{_PHI_MLP}.fc1", f"{_MLP}.up"),
    *dense_rows(f"{_PHI_MLP}.fc2", f"{_MLP}.down"),
    row("lm_head.bias", "head_bias"),
    *LLAMA,
)

_GPT2, _NEOX = "transformer.h.{i}", "gpt_neox.layers.{i}"
_FALCON = _GPT2
_QUERY_KEY_VALUE = tuple(f"{_ATTENTION}.{name}" for name in ("query", "key", "value"))
_KERNELS = [f"{name}.kernel" for name in _QUERY_KEY_VALUE]
_BIASES = [f"{name}.bias" for name in _QUERY_KEY_VALUE]
_CONV1D = Kernel(swap=False)  # of GPT-2's code: a linear layer that is stored [in, out]

GPT2 = (
    row("transformer.wte.weight", "embedding.table"),
    row("transformer.wpe.weight", "position_embedding.table"),
    *norm_rows(f"{_GPT2}.ln_1", f"{_BLOCK}.attention_norm"),
    row(f"{_GPT2}.attn.c_attn.weight", _KERNELS, Fused(_CONV1D, axis=1)),
    row(f"{_GPT2}.attn.c_attn.bias", _BIASES, Fused(FLAT)),
    *dense_rows(f"{_GPT2}.attn.c_proj", f"{_ATTENTION}.output", Kernel(in_axes=2, swap=False)),
    *norm_rows(f"{_GPT2}.ln_2", f"{_BLOCK}.mlp_norm"),
    *dense_rows(f"{_GPT2}.mlp.c_fc", f"{_MLP}.up", _CONV1D),
    *dense_rows(f"{_GPT2}.mlp.c_proj", f"{_MLP}.down", _CONV1D),
    *norm_rows("transformer.ln_f", "norm"),
    row("lm_head.weight", "head.table"),
)


def _fused_head_rows(layer: str, attention: str) -> Iterator[Row]:
    """A block whose queries, keys and values are one tensor, by heads."""
    yield from norm_rows(f"{layer}.input_layernorm", f"{_BLOCK}.attention_norm")
    yield from norm_rows(f"{layer}.post_attention_layernorm", f"{_BLOCK}.mlp_norm")
    heads = f"{layer}.{attention}.query_key_value"
    yield row(f"{heads}.weight", _KERNELS, FusedByHeads())
    yield row(f"{heads}.bias", _BIASES, FusedByHeads())
    yield from dense_rows(f"{layer}.{attention}.dense", f"{_ATTENTION}.output", OUTPUT_KERNEL)
    yield from dense_rows(f"{layer}.mlp.dense_h_to_4h", f"{_MLP}.up")
    yield from dense_rows(f"{layer}.mlp.dense_4h_to_h", f"{_MLP}.down")


GPT_NEOX = (
    row("gpt_neox.embed_in.weight", "embedding.table"),
    *_fused_head_rows(_NEOX, "attention"),
    *norm_rows("gpt_neox.final_layer_norm", "norm"),
    row("embed_out.weight", "head.table"),
)

FALCON = (
    row("transformer.word_embeddings.weight", "embedding.table"),
    *_fused_head_rows(_FALCON, "self_attention"),
    *norm_rows("transformer.ln_f", "norm"),
    row("lm_head.weight", "head.table"),
)


_LATENT = (
    *dense_rows(f"{_KEY}.self_attn.q_a_proj", f"{_ATTENTION}.query_down"),
    row(f"{_KEY}.self_attn.q_a_layernorm.weight", f"{_ATTENTION}.query_down_norm.scale"),
    row(f"{_KEY}.self_attn.kv_a_layernorm.weight", f"{_ATTENTION}.down_norm.scale"),
    row(f"{_KEY}.self_attn.kv_b_proj.weight", _KERNELS[1:], FusedByHeads()),
)


@dataclass(frozen=True)
class Layout:
    """The keys of a family of decoders."""

    rows: tuple[Row, ...]
    table: str = "model.embed_tokens.weight"  # the embedding's
    head: str = "lm_head.weight"
    token_output: str = "score"  # classes of tokens
    # Of decoders that were saved without the head's prefix, and other names.
    renames: tuple[tuple[str, str], ...] = ((r"^(embed_tokens|layers|norm)\.", r"model.\1."),)
    ignored: tuple[str, ...] = (r".*\.rotary_emb\.inv_freq",)
    turns: bool = False  # the two numbers of a rotary pair stand side by side
    parallel_norms: tuple[Row, ...] = ()  # where both parts of a block have one of the same input

    def rows_of(self, config: DecoderConfig) -> tuple[Row, ...]:
        """The rows for one config."""
        if config.parallel_residual and not config.shared_norm:
            return (*self.parallel_norms, *self.rows)
        whole = config.rotary.width(config.turned_dim) == config.head_dim
        width = None if whole else config.rotary.width(config.turned_dim)
        begin = config.head_dim - config.turned_dim
        turned = partial(Turned, width=width, begin=begin, alternates=self.turns)
        attention = f"{_KEY}.self_attn"
        if config.latent is not None:
            down = partial(turned, begin=config.latent.dim)
            query = "q_proj" if config.latent.query_dim is None else "q_b_proj"
            return (
                row(f"{attention}.{query}.weight", f"{_ATTENTION}.query.kernel", turned(KERNEL)),
                *dense_rows(
                    f"{attention}.kv_a_proj_with_mqa",
                    f"{_ATTENTION}.down",
                    down(KERNEL),
                    down(SAME),
                ),
                *self.rows,
            )
        if not self.turns:
            return self.rows
        return (
            *(
                line
                for letter, name in (("q", "query"), ("k", "key"))
                for line in (
                    *dense_rows(
                        f"{attention}.{letter}_proj",
                        f"{_ATTENTION}.{name}",
                        turned(KERNEL),
                        turned(FLAT),
                    ),
                    row(
                        f"{attention}.{letter}_norm.weight",
                        f"{_ATTENTION}.{name}_norm.scale",
                        turned(SAME),
                    ),
                )
            ),
            *self.rows,
        )

    def key_table(self, config: DecoderConfig) -> KeyTable:
        """The table for one config: a tied head may be stored, but is not read."""
        rows = self.rows_of(config)
        if not config.tie_embeddings:
            return KeyTable(rows, self.renames, self.ignored)
        # A tied pair may be stored as either.
        ignored = (*self.ignored, re.escape(self.head))
        return KeyTable(rows, self.renames, ignored, ((self.table, self.head),))

    def head_table(self, config: DecoderConfig) -> KeyTable:
        """The table of a `TextDecoder`: decoders alone are stored without the prefix."""
        task = "" if config.head is None else config.head.task
        alone = task == "feature-extraction"
        prefix = self.table.partition(".")[0] + "."
        rows = (
            row(
                [key.text.removeprefix(prefix) if alone else key.text for key in old.keys],
                [f"decoder.{parameter.text}" for parameter in old.parameters],
                old.transform,
            )
            for old in self.rows_of(config)
        )
        output = self.token_output if task == "token-classification" else "score"
        return KeyTable(
            (*rows, *(() if alone else dense_rows(output, "head.output"))),
            ((f"^{re.escape(prefix)}", ""),) if alone else self.renames,
            (
                *self.ignored,
                r"(lm_head|embed_out)\..*",
                *((r"(score|classifier)\..*",) if alone else ()),
            ),
        )

    def refine(self, config: DecoderConfig, tensors: Mapping[str, Any]) -> DecoderConfig:
        """A head that is stored with numbers of its own counts, whatever config.json says."""
        table = self.table.partition(".")[2]  # with the head's prefix or without
        if config.tie_embeddings and stored_apart(tensors, table, self.head):
            return replace(config, tie_embeddings=False)
        return config


_MASKS = r".*\.(attn|attention)\.(bias|masked_bias)"  # constants of early versions
LLAMA_LAYOUT = Layout(LLAMA)
PHI_LAYOUT = Layout(PHI, renames=((r"^(embed_tokens|layers|final_layernorm)\.", r"model.\1."),))
LLAMA4_LAYOUT = Layout(
    LLAMA4,
    # Of models that read images besides.
    renames=((r"^language_model\.", ""), (r"^(embed_tokens|layers|norm)\.", r"model.\1.")),
    ignored=(r".*\.rotary_emb\.inv_freq", r"(vision_model|multi_modal_projector)\..*"),
    turns=True,
)
GPT2_LAYOUT = Layout(
    GPT2,
    table="transformer.wte.weight",
    token_output="classifier",
    renames=((r"^(wte|wpe|h|ln_f)\.", r"transformer.\1."),),
    ignored=(_MASKS,),
)
GPT_NEOX_LAYOUT = Layout(
    GPT_NEOX,
    table="gpt_neox.embed_in.weight",
    head="embed_out.weight",
    token_output="classifier",
    renames=(
        (r"^(embed_in|layers|final_layer_norm)\.", r"gpt_neox.\1."),
        (r"^lm_head\.", "embed_out."),
    ),
    ignored=(_MASKS, r".*\.rotary_emb\.inv_freq"),
)
FALCON_LAYOUT = Layout(
    FALCON,
    table="transformer.word_embeddings.weight",
    token_output="classifier",
    renames=((r"^(word_embeddings|h|ln_f)\.", r"transformer.\1."),),
    parallel_norms=(
        *norm_rows(f"{_FALCON}.ln_attn", f"{_BLOCK}.attention_norm"),
        *norm_rows(f"{_FALCON}.ln_mlp", f"{_BLOCK}.mlp_norm"),
    ),
)
MINICPM3 = Layout((*_LATENT, *LLAMA))
DEEPSEEK = Layout(
    (
        *_LATENT,
        row(f"{_KEY}.mlp.gate.e_score_correction_bias", f"{_MLP}.router_correction"),
        *(
            row(f"{_KEY}.mlp.shared_experts.{n}_proj.weight", f"{_MLP}.shared.{n}.kernel", KERNEL)
            for n in _GATED
        ),
        *QWEN3_MOE,
    ),
    # The layer of V3 that guesses the token after the next one.
    ignored=(r".*\.rotary_emb\.inv_freq", r"model\.layers\.61\..*"),
    turns=True,
)
