"""Key tables of decoders: the tensors of Hugging Face checkpoints and their parameters."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
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
    Interleaved,
    Kernel,
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

PHI3 = (
    *fused_rows(
        f"{_KEY}.self_attn.qkv_proj", [f"{_ATTENTION}.{name}" for name in ("query", "key", "value")]
    ),
    *fused_rows(f"{_KEY}.mlp.gate_up_proj", [f"{_MLP}.{name}" for name in ("gate", "up")]),
    *LLAMA,
)

GEMMA3 = (
    row(f"{_KEY}.post_attention_layernorm.weight", f"{_BLOCK}.attention_out_norm.scale"),
    row(f"{_KEY}.pre_feedforward_layernorm.weight", f"{_BLOCK}.mlp_norm.scale"),
    row(f"{_KEY}.post_feedforward_layernorm.weight", f"{_BLOCK}.mlp_out_norm.scale"),
    *LLAMA,
)

_EACH_EXPERT = Kernel(batch_axes=1)

# How transformers 5 holds the experts in memory, and saves them if asked to.
_STACKED_EXPERTS = (
    row(f"{_KEY}.mlp.gate.weight", f"{_MLP}.router", KERNEL),
    row(
        f"{_KEY}.mlp.experts.gate_up_proj",
        [f"{_MLP}.experts_gate", f"{_MLP}.experts_up"],
        Fused(_EACH_EXPERT, axis=1),
    ),
    row(f"{_KEY}.mlp.experts.down_proj", f"{_MLP}.experts_down", _EACH_EXPERT),
)


def _expert_rows(mixture: str, names: tuple[str, str, str]) -> Iterator[Row]:
    """A tensor for each expert; the names are those of `_GATED`."""
    yield row(f"{mixture}.gate.weight", f"{_MLP}.router", KERNEL)
    for theirs, ours in zip(names, _GATED, strict=True):
        yield row(f"{mixture}.experts.{{e}}.{theirs}.weight", f"{_MLP}.experts_{ours}", KERNEL)
    yield from _STACKED_EXPERTS
    yield from LLAMA


MIXTRAL = tuple(_expert_rows(f"{_KEY}.block_sparse_moe", ("w1", "w3", "w2")))
QWEN3_MOE = tuple(_expert_rows(f"{_KEY}.mlp", ("gate_proj", "up_proj", "down_proj")))


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
    *(
        row(f"{_KEY}.self_attn.{key}_proj.{part}", f"{_ATTENTION}.{name}.{parameter}", transform)
        for key, name in (("q", "query"), ("k", "key"))
        for part, parameter, transform in (
            ("weight", "kernel", Interleaved(KERNEL)),
            ("bias", "bias", Interleaved(FLAT)),
        )
    ),
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

GPT_NEOX = (
    row("gpt_neox.embed_in.weight", "embedding.table"),
    *norm_rows(f"{_NEOX}.input_layernorm", f"{_BLOCK}.attention_norm"),
    row(f"{_NEOX}.attention.query_key_value.weight", _KERNELS, FusedByHeads()),
    row(f"{_NEOX}.attention.query_key_value.bias", _BIASES, FusedByHeads()),
    *dense_rows(f"{_NEOX}.attention.dense", f"{_ATTENTION}.output", OUTPUT_KERNEL),
    *norm_rows(f"{_NEOX}.post_attention_layernorm", f"{_BLOCK}.mlp_norm"),
    *dense_rows(f"{_NEOX}.mlp.dense_h_to_4h", f"{_MLP}.up"),
    *dense_rows(f"{_NEOX}.mlp.dense_4h_to_h", f"{_MLP}.down"),
    *norm_rows("gpt_neox.final_layer_norm", "norm"),
    row("embed_out.weight", "head.table"),
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

    def key_table(self, config: DecoderConfig) -> KeyTable:
        """The table for one config: a tied head may be stored, but is not read."""
        if not config.tie_embeddings:
            return KeyTable(self.rows, self.renames, self.ignored)
        # A tied pair may be stored as either.
        ignored = (*self.ignored, re.escape(self.head))
        return KeyTable(self.rows, self.renames, ignored, ((self.table, self.head),))

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
            for old in self.rows
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
