"""PatchTST: from its config.json and key table to the model. Defaults are those of transformers."""

from collections.abc import Mapping
from typing import Any

from models.architecture import Architecture
from models.patchtst.config import PatchTSTConfig
from models.patchtst.model import PatchTST
from models.settings import read_model, write_settings
from models.weights.backbone import STEPS
from models.weights.fields import Fields
from models.weights.rows import attention_rows, batch_norm_rows, dense_rows, norm_rows
from models.weights.table import KeyTable, row
from models.weights.transforms import OUTPUT_KERNEL, Leading

_LAYER, _BLOCK = "model.encoder.layers.{i}", "blocks.{i}"
_POSITIONS = "model.encoder.positional_encoder"
_PARTS: Mapping[str, str] = {
    "norm_sublayer1": "attention_norm",
    "norm_sublayer2": "channel_norm",
    "norm_sublayer3": "mlp_norm",
}
_BODY = (
    *dense_rows("model.encoder.embedder.input_embedding", "patches", OUTPUT_KERNEL),
    row(f"{_POSITIONS}.cls_token", "class_token", Leading(3)),
    *attention_rows(f"{_LAYER}.self_attn", f"{_BLOCK}.attention"),
    *dense_rows(f"{_LAYER}.ff.0", f"{_BLOCK}.mlp.up"),
    *dense_rows(f"{_LAYER}.ff.3", f"{_BLOCK}.mlp.down"),
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
    has_batch_norm = config.norm == "batchnorm"
    norms = [
        line
        for theirs, ours in _PARTS.items()
        for line in (
            batch_norm_rows(f"{_LAYER}.{theirs}.batchnorm", f"{_BLOCK}.{ours}")
            if has_batch_norm
            else norm_rows(f"{_LAYER}.{theirs}", f"{_BLOCK}.{ours}")
        )
    ]
    positions = "positions" if config.positions == "random" else "sinusoids"
    is_pooled = config.class_token or config.pooling is not None
    head = (
        dense_rows("head.projection", "projection")
        if is_pooled
        else dense_rows("head.projection", "projection", OUTPUT_KERNEL)
    )
    return KeyTable(
        (*_BODY, *norms, row(f"{_POSITIONS}.position_enc", positions), *head),
        ignored=(STEPS,),
    )


def _read(fields: Fields) -> PatchTSTConfig:
    fields.refuse("loss", "mse", why="only point forecasts are supported, not distributions")
    for name in ("share_embedding", "share_projection"):
        fields.refuse(
            name, True, why="only an embedding and a head shared by all series are supported"
        )
    scaling = fields.values.get("scaling", "std")
    if not isinstance(scaling, str | bool | None) or scaling not in _SCALINGS:
        raise fields.fail("scaling", f"choose one of {', '.join(map(repr, _SCALINGS))}")
    return read_model(PatchTSTConfig, fields, scaling=_SCALINGS[scaling])


ARCHITECTURES = (
    Architecture(
        name="PatchTSTForPrediction",
        model_type="patchtst",
        family="patchtst",
        task="time-series-forecasting",
        read_config=_read,
        defaults={
            **write_settings(PatchTSTConfig()),
            "loss": "mse",
            "share_embedding": True,
            "share_projection": True,
        },
        model=PatchTST,
        keys=key_table,
    ),
)
