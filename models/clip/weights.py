"""Key table of CLIP: the tensors of Hugging Face checkpoints and their parameters."""

from models.clip.config import CLIPConfig
from models.weights.table import KeyTable, Row, prefixed, row
from models.weights.transforms import CONV_2D, FLAT, KERNEL, OUTPUT_KERNEL

_KEY, _BLOCK = "encoder.layers.{i}", "blocks.{i}"
_HEADS = {"query": "q_proj", "key": "k_proj", "value": "v_proj"}
BLOCKS: tuple[Row, ...] = (
    *(
        row(f"{_KEY}.self_attn.{theirs}.weight", f"{_BLOCK}.attention.{ours}.kernel", KERNEL)
        for ours, theirs in _HEADS.items()
    ),
    *(
        row(f"{_KEY}.self_attn.{theirs}.bias", f"{_BLOCK}.attention.{ours}.bias", FLAT)
        for ours, theirs in _HEADS.items()
    ),
    row(f"{_KEY}.self_attn.out_proj.weight", f"{_BLOCK}.attention.output.kernel", OUTPUT_KERNEL),
    row(f"{_KEY}.self_attn.out_proj.bias", f"{_BLOCK}.attention.output.bias"),
    row(f"{_KEY}.mlp.fc1.weight", f"{_BLOCK}.mlp.up.kernel", KERNEL),
    row(f"{_KEY}.mlp.fc1.bias", f"{_BLOCK}.mlp.up.bias"),
    row(f"{_KEY}.mlp.fc2.weight", f"{_BLOCK}.mlp.down.kernel", KERNEL),
    row(f"{_KEY}.mlp.fc2.bias", f"{_BLOCK}.mlp.down.bias"),
    row(f"{_KEY}.layer_norm1.weight", f"{_BLOCK}.attention_norm.scale"),
    row(f"{_KEY}.layer_norm1.bias", f"{_BLOCK}.attention_norm.bias"),
    row(f"{_KEY}.layer_norm2.weight", f"{_BLOCK}.mlp_norm.scale"),
    row(f"{_KEY}.layer_norm2.bias", f"{_BLOCK}.mlp_norm.bias"),
)
_TEXT = (
    row("embeddings.token_embedding.weight", "embedding.table"),
    row("embeddings.position_embedding.weight", "positions"),
    *BLOCKS,
    row("final_layer_norm.weight", "norm.scale"),
    row("final_layer_norm.bias", "norm.bias"),
)
_VISION = (
    row("embeddings.class_embedding", "class_token"),
    row("embeddings.patch_embedding.weight", "patches.kernel", CONV_2D),
    row("embeddings.position_embedding.weight", "positions"),
    # The name in the files is misspelt.
    row("pre_layrnorm.weight", "in_norm.scale"),
    row("pre_layrnorm.bias", "in_norm.bias"),
    *BLOCKS,
    row("post_layernorm.weight", "norm.scale"),
    row("post_layernorm.bias", "norm.bias"),
)
_JOINT = (
    row("text_projection.weight", "text_projection.kernel", KERNEL),
    row("visual_projection.weight", "vision_projection.kernel", KERNEL),
    row("logit_scale", "logit_scale"),
)
_BACKBONE = r"^(embeddings|encoder|final_layer_norm|pre_layrnorm|post_layernorm)\."


def key_table(config: CLIPConfig) -> KeyTable:
    """The table for one config: a tower's keys have a prefix unless there is nothing else."""
    alone = config.projection_dim is None
    towers = (
        ("text_model", "text.", _TEXT, config.text),
        ("vision_model", "vision.", _VISION, config.vision),
    )
    rows: list[Row] = []
    renames: tuple[tuple[str, str], ...] = ()
    for theirs, ours, table, tower in towers:
        if tower is None:
            continue
        rows += prefixed("" if alone else f"{theirs}.", table, ours)
        if alone:
            renames = ((rf"^{theirs}\.", ""),)
        elif config.text is None or config.vision is None:
            renames = ((_BACKBONE, rf"{theirs}.\1."),)
    return KeyTable((*rows, *_JOINT), renames, ignored=(r".*\.position_ids",))
