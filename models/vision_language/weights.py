"""Key tables of language models that see images."""

from collections.abc import Callable
from dataclasses import dataclass

from models.architecture import Architecture
from models.clip.weights import BLOCKS
from models.vision_language.config import VisionLanguageConfig
from models.weights.rows import dense_rows, norm_rows
from models.weights.table import KeyTable, Row, prefixed, row
from models.weights.transforms import CONV_2D, KERNEL, SAME, Transform

_TOWER: tuple[Row, ...] = (
    *dense_rows("embeddings.patch_embedding", "patches", CONV_2D),
    row("embeddings.position_embedding.weight", "positions"),
    *BLOCKS,
    *norm_rows("post_layernorm", "norm"),
)


@dataclass(frozen=True)
class Layout:
    """Where the parts stand."""

    tower: str
    projection: str
    transform: Transform
    text_key: Callable[[str], str]  # of a key of the language model alone
    norm: str | None = None
    renames: tuple[tuple[str, str], ...] = ()

    def key_table(self, text: Architecture, config: VisionLanguageConfig) -> KeyTable:
        """The table for one config, whose text is of that architecture."""
        inner = text.keys(config.decoder)
        rows = (
            row(
                [self.text_key(key.text) for key in old.keys],
                [f"text.{parameter.text}" for parameter in old.parameters],
                old.transform,
            )
            for old in inner.rows
        )
        connector = [row(self.projection, "connector.projection.kernel", self.transform)]
        if self.norm is not None:
            connector.append(row(self.norm, "connector.norm.scale"))
        return KeyTable(
            (*rows, *prefixed(f"{self.tower}.", _TOWER, "vision."), *connector),
            self.renames,
            # The pooling head of a tower has no part in what is made of it.
            (
                *(self.text_key(pattern) for pattern in inner.ignored),
                r".*\.head\..*",
                r".*\.position_ids",
            ),
            tuple((self.text_key(key), self.text_key(other)) for key, other in inner.substitutes),
        )


GEMMA3 = Layout(
    tower="vision_tower",
    projection="multi_modal_projector.mm_input_projection_weight",
    transform=SAME,
    norm="multi_modal_projector.mm_soft_emb_norm.weight",
    text_key=lambda key: key if key.startswith(".*") else f"language_model.{key}",
    renames=(
        (r"^model\.(vision_tower|multi_modal_projector)\.", r"\1."),
        (r"^vision_tower\.vision_model\.", "vision_tower."),
        (r"^model\.language_model\.", "language_model.model."),
        (r"^lm_head\.", "language_model.lm_head."),
    ),
)
IDEFICS3 = Layout(
    tower="model.vision_model",
    projection="model.connector.modality_projection.proj.weight",
    transform=KERNEL,
    text_key=lambda key: (
        f"model.text_model.{key.removeprefix('model.')}" if key.startswith("model.") else key
    ),
)
