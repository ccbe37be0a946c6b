"""Key tables of diffusion models: the tensors of diffusers checkpoints and their parameters."""

from functools import partial

from models.diffusion.config import AutoencoderConfig, UNetConfig
from models.weights.rows import attention_rows, dense_rows, fused_rows, norm_rows
from models.weights.table import KeyTable, Row, row
from models.weights.transforms import CONV_2D, FLAT, KERNEL, POINTWISE, Transform

_attention = partial(attention_rows, heads=("to_q", "to_k", "to_v"), output="to_out.0")


def _residual(theirs: str, ours: str) -> tuple[Row, ...]:
    return (
        *norm_rows(f"{theirs}.norm1", f"{ours}.norm_1"),
        *dense_rows(f"{theirs}.conv1", f"{ours}.conv_1", CONV_2D),
        *dense_rows(f"{theirs}.time_emb_proj", f"{ours}.time", KERNEL),
        *norm_rows(f"{theirs}.norm2", f"{ours}.norm_2"),
        *dense_rows(f"{theirs}.conv2", f"{ours}.conv_2", CONV_2D),
        *dense_rows(f"{theirs}.conv_shortcut", f"{ours}.shortcut", CONV_2D),
    )


def _transformer(theirs: str, ours: str, projection: Transform) -> tuple[Row, ...]:
    their_block, our_block = f"{theirs}.transformer_blocks.{{k}}", f"{ours}.blocks.{{k}}"
    gated = [f"{our_block}.mlp.up", f"{our_block}.mlp.gate"]
    return (
        *norm_rows(f"{theirs}.norm", f"{ours}.norm"),
        *dense_rows(f"{theirs}.proj_in", f"{ours}.inwards", projection),
        *norm_rows(f"{their_block}.norm1", f"{our_block}.attention_norm"),
        *_attention(f"{their_block}.attn1", f"{our_block}.attention"),
        *norm_rows(f"{their_block}.norm2", f"{our_block}.cross_attention_norm"),
        *_attention(f"{their_block}.attn2", f"{our_block}.cross_attention"),
        *norm_rows(f"{their_block}.norm3", f"{our_block}.mlp_norm"),
        *fused_rows(f"{their_block}.ff.net.0.proj", gated),
        *dense_rows(f"{their_block}.ff.net.2", f"{our_block}.mlp.down", KERNEL),
        *dense_rows(f"{theirs}.proj_out", f"{ours}.outwards", projection),
    )


def _way(way: str, resize: str, projection: Transform) -> tuple[Row, ...]:
    """All levels on the way down, or up."""
    theirs, ours = f"{way}_blocks.{{i}}", f"{way}.{{i}}"
    return (
        *_residual(f"{theirs}.resnets.{{j}}", f"{ours}.residuals.{{j}}"),
        *_transformer(f"{theirs}.attentions.{{j}}", f"{ours}.attentions.{{j}}", projection),
        *dense_rows(f"{theirs}.{resize}.0.conv", f"{ours}.resize", CONV_2D),
    )


def _descent(projection: Transform) -> tuple[Row, ...]:
    """The half that the denoiser and a ControlNet have."""
    return (
        *dense_rows("conv_in", "conv_in", CONV_2D),
        *(
            row
            for theirs, ours in (("time", "time"), ("add", "ids"))
            for i in (1, 2)
            for row in dense_rows(
                f"{theirs}_embedding.linear_{i}", f"{ours}_embedding.linear_{i}", KERNEL
            )
        ),
        *_way("down", "downsamplers", projection),
        *_residual("mid_block.resnets.{j}", "middle.residuals.{j}"),
        *_transformer("mid_block.attentions.0", "middle.attention", projection),
    )


def _projection(config: UNetConfig) -> Transform:
    """The maps around attention are convolutions in some files."""
    return KERNEL if config.linear_projections else POINTWISE


def unet_table(config: UNetConfig) -> KeyTable:
    """The denoiser's table."""
    projection = _projection(config)
    return KeyTable(
        (
            *_descent(projection),
            row("time_embedding.cond_proj.weight", "time_embedding.condition.kernel", KERNEL),
            *_way("up", "upsamplers", projection),
            *norm_rows("conv_norm_out", "norm"),
            *dense_rows("conv_out", "conv_out", CONV_2D),
        )
    )


def adapter_table(config: UNetConfig) -> KeyTable:
    """The table of an IP-Adapter for the denoiser. Files count its attention layers, those of the
    image itself too: the way down, the way up, then the middle."""
    places = [
        f"{way}.{i}.attentions.{j}.blocks.{k}"
        for way, levels, layers in (
            ("down", range(len(config.channels)), config.layers),
            ("up", reversed(range(len(config.channels))), config.layers + 1),
        )
        for i, level in enumerate(levels)
        if (config.down_attention if way == "down" else config.up_attention)[level]
        for j in range(layers)
        for k in range(config.depths[level])
    ]
    places += [f"middle.attention.blocks.{k}" for k in range(config.depths[-1])]
    return KeyTable(
        (
            row("image_proj.proj.weight", "image_tokens.projection.kernel", KERNEL),
            row("image_proj.proj.bias", "image_tokens.projection.bias", FLAT),
            *norm_rows("image_proj.norm", "image_tokens.norm"),
            *(
                row(
                    f"ip_adapter.{2 * number + 1}.to_{name[0]}_ip.weight",
                    f"{place}.image_memory.{name}.kernel",
                    KERNEL,
                )
                for number, place in enumerate(places)
                for name in ("key", "value")
            ),
        )
    )


def control_table(config: UNetConfig) -> KeyTable:
    """The table of a ControlNet."""
    hint = "controlnet_cond_embedding"
    return KeyTable(
        (
            *_descent(_projection(config)),
            *dense_rows(f"{hint}.conv_in", "hint.conv_in", CONV_2D),
            *dense_rows(f"{hint}.blocks.{{i}}", "hint.blocks.{i}", CONV_2D),
            *dense_rows(f"{hint}.conv_out", "hint.conv_out", CONV_2D),
            *dense_rows("controlnet_down_blocks.{i}", "handed.{i}", CONV_2D),
            *dense_rows("controlnet_mid_block", "coarsest", CONV_2D),
        )
    )


def _half(half: str, way: str, resize: str) -> tuple[Row, ...]:
    """The encoder or the decoder."""
    theirs, ours = f"{half}.{way}_blocks.{{i}}", f"{half}.levels.{{i}}"
    middle = f"{half}.mid_block"
    return (
        *dense_rows(f"{half}.conv_in", f"{half}.conv_in", CONV_2D),
        *_residual(f"{theirs}.resnets.{{j}}", f"{ours}.residuals.{{j}}"),
        *dense_rows(f"{theirs}.{resize}.0.conv", f"{ours}.resize", CONV_2D),
        *_residual(f"{middle}.resnets.{{j}}", f"{half}.middle.residuals.{{j}}"),
        *norm_rows(f"{middle}.attentions.0.group_norm", f"{half}.middle.attention.norm"),
        *_attention(f"{middle}.attentions.0", f"{half}.middle.attention.attention"),
        *norm_rows(f"{half}.conv_norm_out", f"{half}.norm"),
        *dense_rows(f"{half}.conv_out", f"{half}.conv_out", CONV_2D),
    )


_OLD_ATTENTION = r"(mid_block\.attentions\.0)\."
_AUTOENCODER = KeyTable(
    (
        *_half("encoder", "down", "downsamplers"),
        *_half("decoder", "up", "upsamplers"),
        *dense_rows("quant_conv", "quant_conv", CONV_2D),
        *dense_rows("post_quant_conv", "post_quant_conv", CONV_2D),
    ),
    renames=(
        (_OLD_ATTENTION + r"query\.", r"\1.to_q."),
        (_OLD_ATTENTION + r"key\.", r"\1.to_k."),
        (_OLD_ATTENTION + r"value\.", r"\1.to_v."),
        (_OLD_ATTENTION + r"proj_attn\.", r"\1.to_out.0."),
    ),
)


def autoencoder_table(config: AutoencoderConfig) -> KeyTable:
    """The autoencoder's table, the same for every config."""
    return _AUTOENCODER
