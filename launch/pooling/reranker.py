"""A cross-encoder of sentence-transformers: how well documents answer a query."""

from collections.abc import Sequence
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from launch.pooling.encoder import BATCH, Route
from launch.pooling.text import Text
from models.errors import ConfigError
from models.layers.activations import activation
from models.sentences.config import read_scoring


class Reranker:
    """Scores pairs of texts as `sentence_transformers.CrossEncoder` does with the same
    directory."""

    def __init__(self, route: Route, act: str) -> None:
        self._route, self._act = route, act

    @classmethod
    def open(
        cls, directory: Path, mesh: Mesh, dtype: str | None = None, batch: int = BATCH
    ) -> "Reranker":
        """Reads a directory, the weights onto the mesh; `batch` as of `SentenceEncoder.open`.

        Raises ConfigError for a model that gives texts no classes, and what `SentenceEncoder.open`
        raises.
        """
        config, act = read_scoring(directory)
        route = Route.open(directory, config, mesh, dtype, batch)
        if route.model.architecture.task != "text-classification":
            raise ConfigError(
                f"{directory} holds {route.model.architecture.name}, but pairs are scored by a "
                "model with ForSequenceClassification in its name"
            )
        alone = route.model.config.head.num_labels == 1
        return cls(route, act or ("sigmoid" if alone else "linear"))

    def predict(self, pairs: Sequence[tuple[str, str]]) -> np.ndarray:
        """Scores FP32 [N] of pairs, or [N, L] where the model has L > 1 classes."""
        encoded = [self._route.tokenizer.encode(*pair) for pair in pairs]
        logits = self._route.compute([Text(pair.ids, pair.type_ids) for pair in encoded])
        scores = np.asarray(activation(self._act)(jnp.asarray(logits)))
        return scores[:, 0] if scores.shape[1] == 1 else scores

    def rank(self, query: str, documents: Sequence[str]) -> list[tuple[int, float]]:
        """The documents by falling scores: the place of each in the list, and its score."""
        scores = self.predict([(query, document) for document in documents])
        order = np.argsort(-scores, kind="stable")
        return [(int(place), float(scores[place])) for place in order]
