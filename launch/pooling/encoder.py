"""A directory of sentence-transformers: from texts to their vectors."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import tokenizers
from jax.sharding import Mesh
from PIL.Image import Image

from launch.chat_template import reads_token_types
from launch.errors import DataError, ModelError
from launch.loading import load_with_progress
from launch.pooling.buckets import TextBuckets
from launch.pooling.heads import COMMON, WORDS, TaskHead, task_head
from launch.pooling.runner import PoolingRunner
from launch.pooling.text import Text
from launch.text import needed_tokenizer
from models.images import pixels_of, read_preprocessing
from models.parameters import Parameters, merge
from models.pretrained import Pretrained
from models.sentences.config import CLIP, LAST, STATIC, SentenceConfig, read_sentence_config
from models.sentences.model import LoadedHead, load_head
from models.sentences.static import load_static

BATCH = 32  # texts, as the library has it
SHORTEST = 16  # tokens of a batch


class Route(NamedTuple):
    """A model that reads texts, and what becomes of what it makes of them."""

    config: SentenceConfig
    model: Pretrained
    sentence: LoadedHead
    runner: PoolingRunner
    tokenizer: tokenizers.Tokenizer

    @classmethod
    def open(
        cls, directory: Path, config: SentenceConfig, mesh: Mesh, dtype: str | None, batch: int
    ) -> "Route":
        """Reads the files that a directory's config names; arguments and errors as of
        `SentenceEncoder.open`."""
        files = directory / config.folder
        if config.source == STATIC:
            model = load_static(files, mesh)
        else:
            model = load_with_progress(files, mesh, dtype=dtype, pad=True)
        head, of_texts = _head_of(model, config), getattr(model.config, "text", model.config)
        longest = min(of_texts.max_seq_len, config.longest or of_texts.max_seq_len)
        tokenizer = needed_tokenizer(files)
        tokenizer.no_padding()
        tokenizer.enable_truncation(longest)
        buckets = TextBuckets(
            rows=(1, batch), tokens=_powers(longest), batched_tokens=batch * longest
        )
        sentence = load_head(directory, config.modules, model.config.param_dtype, mesh)
        has_types = head is not COMMON and reads_token_types(files, model.config)
        runner = PoolingRunner(model, mesh, buckets, head, sentence, has_types=has_types)
        return cls(config, model, sentence, runner, tokenizer)

    def text(self, text: str) -> Text:
        """The tokens of a text as the directory's files say."""
        if self.config.source == STATIC:
            encoded = self.tokenizer.encode(text, add_special_tokens=False)
        else:
            text = text.strip()
            encoded = self.tokenizer.encode(text.lower() if self.config.lower else text)
        return Text(encoded.ids, encoded.type_ids)

    def compute(self, items: Sequence[Text]) -> np.ndarray:
        """The vectors of N texts in their order, FP32 [N, V].

        Raises:
          DataError: a text has no tokens.
        """
        empty = [place for place, item in enumerate(items) if not item.tokens]
        if empty:
            raise DataError(f"text {empty[0]} has no tokens: give at least one character")
        waiting = sorted(range(len(items)), key=lambda place: -len(items[place].tokens))
        vectors: dict[int, np.ndarray] = {}
        while waiting:
            group = [waiting[i] for i in self.runner.group([items[place] for place in waiting])]
            made = self.runner.compute([items[place] for place in group])
            vectors |= zip(group, made, strict=True)
            waiting = waiting[len(group) :]
        return np.stack([vectors[place] for place in range(len(items))])


def _head_of(model: Pretrained, config: SentenceConfig) -> TaskHead:
    if config.makes_words and model.architecture.task == "fill-mask":
        return WORDS
    return COMMON if model.architecture.name == CLIP else task_head(model)


class SentenceEncoder:
    """Encodes texts as `sentence_transformers.SentenceTransformer` does with the same directory, or
    `SparseEncoder`, whose vectors are whole here."""

    def __init__(self, directory: Path, config: SentenceConfig, routes: Mapping[str, Route]):
        self.config = config
        self._directory, self._routes = directory, routes

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
        configs = config.routes or {"": config}
        routes = {
            name: Route.open(directory, of_route, mesh, dtype, batch)
            for name, of_route in configs.items()
        }
        default = next(
            name for name, of_route in configs.items() if of_route.folder == config.folder
        )
        return cls(directory, config, {"": routes[default], **routes})

    def encode(
        self, texts: Sequence[str], prompt: str | None = None, task: str | None = None
    ) -> np.ndarray:
        """The vectors FP32 [N, V] of texts, in their order; longer ones are cut.

        `prompt` is the name of one of the model's prompts, which stands before each text; None is
        the model's default. `task`, such as "query" or "document", names the model that reads the
        texts where the directory has several; None is its default. Raises DataError if there is no
        such prompt or task, or a text is empty and has no token.
        """
        route = self._route(task)
        made = route.compute([route.text(self._before(prompt) + text) for text in texts])
        return made[:, : self.config.width]

    def encode_images(self, images: Sequence[Image]) -> np.ndarray:
        """The vectors FP32 [N, V] of images, in the space of those of texts.

        Raises ModelError if the model sees no images, ConfigError if its files do not say how they
        are prepared.
        """
        route = self._route(None)
        if route.model.architecture.name != CLIP:
            raise ModelError(f"{self._directory} reads texts alone: CLIP sees images, too")
        prepared = read_preprocessing(self._directory / route.config.folder)
        pixels = np.stack([pixels_of(image, prepared) for image in images])
        graphs = route.model.graph, route.sentence.graph

        @jax.jit
        def run(parameters: tuple[Parameters, Parameters], pixels: jax.Array) -> jax.Array:
            model, sentence = map(merge, graphs, parameters)
            return sentence(model.features(pixels).pooled, jnp.ones(len(pixels), bool))

        made = run((route.model.parameters, route.sentence.parameters), pixels)
        return np.asarray(made)[:, : self.config.width]

    def similarity(self, vectors: np.ndarray, others: np.ndarray) -> np.ndarray:
        """How near vectors [N, V] are to others [M, V], by the model's measure: FP64 [N, M]."""
        return SIMILARITIES[self.config.similarity](vectors, others)

    def _route(self, task: str | None) -> Route:
        if task is None or len(self._routes) == 2:  # one model reads all texts
            return self._routes[""]
        if task not in self.config.routes:
            names = ", ".join(self.config.routes)
            raise DataError(f"the model has no task {task!r}; it has {names}")
        return self._routes[task]

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
