"""How a decoder is divided among the cores of a tensor-parallel group."""

from typing import Any

from models.layers.moe import MoE
from models.parallel.tensor import (
    AddedUp,
    Gathered,
    OwnEmbedding,
    PartialEmbedding,
    Sharing,
    TensorParallel,
)


def _share_model(model: Any, tensor: TensorParallel) -> None:
    model.embedding = PartialEmbedding(model.embedding, tensor)
    if model.position_embedding is not None:
        model.position_embedding = OwnEmbedding(model.position_embedding, tensor)
    model.norm = Gathered(model.norm, tensor)
    model.vocabulary_axes = tensor.vocabulary


def _share_block(block: Any, tensor: TensorParallel) -> None:
    block.attention_norm = Gathered(block.attention_norm, tensor)
    if block.mlp_norm is not None:
        block.mlp_norm = Gathered(block.mlp_norm, tensor)
    if block.attention.dropout is not None:
        block.attention.dropout.axes = tensor.axes
    block.attention.output = AddedUp(block.attention.output, tensor)
    if isinstance(block.mlp, MoE):
        block.mlp = AddedUp(block.mlp, tensor)
    else:
        block.mlp.down = AddedUp(block.mlp.down, tensor)


SHARING = Sharing(_share_model, _share_block)
