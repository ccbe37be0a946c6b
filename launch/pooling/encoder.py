"""A directory of sentence-transformers: from texts to their vectors."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import tokenizers
from jax.sharding import Mesh

from launch.chat_template import reads_token_types
from launch.errors import DataError, ModelError
from launch.loading import load_with_progress
from launch.pooling.buckets import TextBuckets
from launch.pooling.heads import task_head
from launch.pooling.runner import PoolingRunner
from launch.pooling.text import Text
from launch.text import needed_tokenizer
from models.sentences.config import (
    LAST,
    SentenceConfig,
    read_sentence_config,
    transformer_folder,
)
from models.sentences.model import load_head

BATCH = 32  # texts, as the library has it
SHORTEST = 16  # tokens of a batch


class SentenceEncoder:
    """Encodes texts as `sentence_transformers.SentenceTransformer` does with the same directory."""

    def __init__(
        self, runner: PoolingRunner, tokenizer: tokenizers.Tokenizer, config: SentenceConfig
    ) -> None:
        self.config = config
        self._runner, self._tokenizer = runner, tokenizer

    @classmethod
    def open(
        cls, directory: Path, mesh: Mesh, dtype: str | None = None, batch: int = BATCH
    ) -> "SentenceEncoder":
        """Reads a directory, the weights onto the mesh. Texts are computed in static shapes: at
        most `batch` rows of a power of two of tokens.

        Raises ConfigError, DataError, ModelError, ShardingError or WeightsError.
        """
        config = read_sentence_config(directory, LAST)
        if config.similarity not in SIMILARITIES:
            raise ModelError(
                f"{directory} compares vectors by {config.similarity!r}, which is not supported; "
                f"choose one of {', '.join(SIMILARITIES)}"
            )
        files = transformer_folder(directory)
        model = load_with_progress(files, mesh, dtype=dtype, pad=True)
        context = model.config.max_seq_len
        longest = min(context, config.longest or context)
        tokenizer = needed_tokenizer(files)
        tokenizer.no_padding()
        tokenizer.enable_truncation(longest)
        buckets = TextBuckets(
            rows=(1, batch), tokens=_powers(longest), batched_tokens=batch * longest
        )
        sentence = load_head(directory, config.modules, model.config.param_dtype, mesh)
        has_types = reads_token_types(files, model.config)
        runner = PoolingRunner(
            model, mesh, buckets, task_head(model), sentence, has_types=has_types
        )
        return cls(runner, tokenizer, config)

    def encode(self, texts: Sequence[str], prompt: str | None = None) -> np.ndarray:
        """The vectors FP32 [N, V] of texts, in their order; longer ones are cut.

        `prompt` is the name of one of the model's prompts, which stands before each text; None is
        the model's default. Raises DataError if there is none of this name, or a text is empty
        and has no token.
        """
        items = [self._text(self._before(prompt) + text) for text in texts]
        empty = [place for place, item in enumerate(items) if not item.tokens]
        if empty:
            raise DataError(f"text {empty[0]} has no tokens: give at least one character")
        waiting = sorted(range(len(items)), key=lambda place: -len(items[place].tokens))
        vectors: dict[int, np.ndarray] = {}
        while waiting:
            group = [waiting[i] for i in self._runner.group([items[place] for place in waiting])]
            made = self._runner.compute([items[place] for place in group])
            vectors |= zip(group, made, strict=True)
            waiting = waiting[len(group) :]
        return np.stack([vectors[place] for place in range(len(items))])

    def similarity(self, vectors: np.ndarray, others: np.ndarray) -> np.ndarray:
        """How near vectors [N, V] are to others [M, V], by the model's measure: FP64 [N, M]."""
        return SIMILARITIES[self.config.similarity](vectors, others)

    def _before(self, prompt: str | None) -> str:
        name = self.config.default_prompt if prompt is None else prompt
        if name is None:
            return ""
        if name not in self.config.prompts:
            raise DataError(
                f"the model has no prompt {name!r}; it has "
                f"{', '.join(self.config.prompts) or 'none'}"
            )
        return self.config.prompts[name]

    def _text(self, text: str) -> Text:
        text = text.strip()
        encoded = self._tokenizer.encode(text.lower() if self.config.lower else text)
        return Text(encoded.ids, encoded.type_ids)


def _of_length_1(vectors: np.ndarray) -> np.ndarray:
    exact = vectors.astype(np.float64)
    return exact / np.linalg.norm(exact, axis=1, keepdims=True)


def _distances(x: np.ndarray, y: np.ndarray, order: int) -> np.ndarray:
    """The distances of vectors [N, V] from others [M, V], by the norm of an order."""
    exact = y.astype(np.float64)
    return np.stack([np.linalg.norm(exact - vector, order, axis=1) for vector in x])


def _powers(longest: int) -> tuple[int, ...]:
    sizes = [SHORTEST]
    while sizes[-1] < longest:
        sizes.append(2 * sizes[-1])
    return (*sizes[:-1], longest)


SIMILARITIES: Mapping[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "cosine": lambda x, y: _of_length_1(x) @ _of_length_1(y).T,
    "dot": lambda x, y: x.astype(np.float64) @ y.T,
    "euclidean": lambda x, y: -_distances(x, y, 2),
    "manhattan": lambda x, y: -_distances(x, y, 1),
}
"""How near vectors [N, V] are to others [M, V]."""
