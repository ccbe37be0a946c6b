"""Texts as the mean of vectors of their tokens, which do not look at each other: what
sentence-transformers calls StaticEmbedding (Tulkens and van Dongen, "Model2Vec", 2024)."""

from dataclasses import dataclass
from pathlib import Path

import jax
from flax import nnx
from jax.sharding import Mesh

from models.architecture import Architecture
from models.errors import WeightsError
from models.layers.factory import LayerFactory
from models.pretrained import Pretrained, shardings
from models.settings import ModelConfig, setting
from models.weights.directory import open_tensors
from models.weights.fields import Fields
from models.weights.load import load_parameters
from models.weights.table import KeyTable, row

LONGEST = 2**16
"""Tokens of a text: the library sets no limit."""
_TABLE = "embedding.weight"


@dataclass(frozen=True, kw_only=True)
class StaticConfig(ModelConfig):
    """The sizes of the table."""

    vocab_size: int = setting("vocab_size")
    dim: int = setting("hidden_size")
    max_seq_len: int = LONGEST


class StaticWords(nnx.Module):
    """Tokens [R, T] to their vectors, FP32."""

    def __init__(self, config: StaticConfig, *, rngs: nnx.Rngs) -> None:
        self.config = config
        make = LayerFactory(1.0, config.param_dtype, rngs)
        self.embedding = make.embedding(config.vocab_size, config.dim)

    def __call__(self, tokens: jax.Array, *, real: jax.Array | None = None) -> dict[str, jax.Array]:
        """`hidden` [R, T, D] of tokens [R, T]; real changes nothing."""
        return {"hidden": self.embedding(tokens, "float32")}


def load_static(folder: Path, mesh: Mesh) -> Pretrained:
    """The table of a folder, on the mesh. Raises WeightsError if it is not there."""
    tensors = open_tensors(folder)
    if _TABLE not in tensors or len(tensors[_TABLE].shape) != 2:
        raise WeightsError(f"{folder} has no matrix {_TABLE!r}, which a StaticEmbedding needs")
    vocab_size, dim = tensors[_TABLE].shape
    config = StaticConfig(vocab_size=vocab_size, dim=dim)
    keys = KeyTable((row(_TABLE, "embedding.table"),))
    architecture = Architecture.of(
        "StaticEmbedding",
        config,
        StaticWords,
        keys,
        task="feature-extraction",
        library="sentence-transformers",
    )
    graph, abstract = architecture.abstract(config)
    model = Pretrained(architecture, config, Fields({}, str(folder)), graph, abstract)
    placed = shardings(mesh, abstract, model.axis_names())
    return model._replace(parameters=load_parameters(tensors, keys, abstract, placed))
