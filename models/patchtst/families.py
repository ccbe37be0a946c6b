"""PatchTST: from its config.json and key table to the model. Defaults are those of transformers."""

from collections.abc import Mapping
from itertools import chain
from typing import Any

from models.architecture import Architecture
from models.patchtst.config import PatchTSTConfig
from models.patchtst.model import PatchTST
from models.weights.backbone import STEPS
from models.weights.fields import Fields
from models.weights.rows import attention_rows, batch_norm_rows, dense_rows
from models.weights.table import KeyTable, row
from models.weights.transforms import OUTPUT_KERNEL, Leading

_LAYER, _BLOCK = "model.encoder.layers.{i}", "blocks.{i}"
_EMBEDDING = "model.encoder.embedder.input_embedding"
_POSITIONS = "model.encoder.positional_encoder"
_NORMS = ("attention_norm", "channel_norm", "mlp_norm")  # by their numbers from 1
_BODY = (
    *dense_rows(_EMBEDDING, "patches", OUTPUT_KERNEL),
    row(f"{_POSITIONS}.cls_token", "class_token", Leading(3)),
    *attention_rows(f"{_LAYER}.self_attn", f"{_BLOCK}.attention"),
    *dense_rows(f"{_LAYER}.ff.0", f"{_BLOCK}.mlp.up"),
    *dense_rows(f"{_LAYER}.ff.3", f"{_BLOCK}.mlp.down"),
    *dense_rows("head.projection", "projection"),
)
_SCALINGS: Mapping[Any, str | None] = {
    "std": "std",
    "mean": "mean",
    True: "mean",
    False: None,
    None: None,
}


def key_table(config: PatchTSTConfig) -> KeyTable:
    """The table for one config."""
    inside = ".batchnorm" if config.norm == "batchnorm" else ""
    norms = (
        batch_norm_rows(f"{_LAYER}.norm_sublayer{i}{inside}", f"{_BLOCK}.{norm}")
        for i, norm in enumerate(_NORMS, start=1)
    )
    own = () if config.shared_patches else dense_rows(f"{_EMBEDDING}.{{c}}", "own_patches")
    positions = "positions" if config.positions == "random" else "sinusoids"
    stored = row(f"{_POSITIONS}.position_enc", positions)
    return KeyTable((*own, *_BODY, *chain(*norms), stored), ignored=(STEPS,))


def _read(fields: Fields) -> Mapping[str, Any]:
    scaling = fields.values.get("scaling", "std")
    if not isinstance(scaling, str | bool | None) or scaling not in _SCALINGS:
        raise fields.fail("scaling", f"choose one of {', '.join(map(repr, _SCALINGS))}")
    return {"scaling": _SCALINGS[scaling]}


ARCHITECTURES = (
    Architecture.of(
        "PatchTSTForPrediction",
        PatchTSTConfig(),
        PatchTST,
        key_table,
        task="time-series-forecasting",
        read=_read,
    ),
)
