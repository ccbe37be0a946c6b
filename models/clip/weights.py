"""Key table of CLIP: the tensors of Hugging Face checkpoints and their parameters."""

from models.clip.config import CLIPConfig
from models.weights.rows import BlockNames, block_rows, norm_rows
from models.weights.table import KeyTable, Row, prefixed, row
from models.weights.transforms import CONV_2D, KERNEL

_NAMES = BlockNames(
    ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "self_attn.out_proj",
    "mlp.fc1",
    "mlp.fc2",
    ("layer_norm1", "layer_norm2"),
)
BLOCKS = tuple(block_rows("encoder.layers.{i}", "blocks.{i}", _NAMES))
_TEXT = (
    row("embeddings.token_embedding.weight", "embedding.table"),
    row("embeddings.position_embedding.weight", "positions"),
    *BLOCKS,
    *norm_rows("final_layer_norm", "norm"),
)
_VISION = (
    row("embeddings.class_embedding", "class_token"),
    row("embeddings.patch_embedding.weight", "patches.kernel", CONV_2D),
    row("embeddings.position_embedding.weight", "positions"),
    *norm_rows("pre_layrnorm", "in_norm"),  # misspelt in the files
    *BLOCKS,
    *norm_rows("post_layernorm", "norm"),
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
