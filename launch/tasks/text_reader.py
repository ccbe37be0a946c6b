"""A text encoder with its tokenizer: what the tasks of encoders share."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import tokenizers
from flax import nnx

from launch.chat_template import reads_token_types
from launch.errors import DataError
from launch.meshes import choose_mesh
from launch.program import say
from launch.tasks.media_reader import load_requested
from launch.tasks.task import Request
from launch.text import needed_tokenizer
from models.parameters import Parameters, merge
from models.pretrained import Pretrained, describe

SEPARATOR = "|"  # between the parts of an input
OVERLAP = 128  # tokens that a window repeats of the one before, as transformers' pipelines do
AT_ONCE = 8  # windows that are computed at a time


class Reader(NamedTuple):
    """A model and its tokenizer."""

    model: Pretrained
    tokenizer: tokenizers.Tokenizer
    has_types: bool  # whether the model is told token types

    def outputs(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The model's outputs for `rows`."""
        outputs = _run(self.model.graph, self.model.parameters, inputs)
        return {name: np.asarray(value) for name, value in outputs.items()}

    def encode(self, text: str, other: str | None = None) -> tokenizers.Encoding:
        """The tokens of a text or of a pair; what the model's context does not hold is left out,
        at the end of the longer text first, with a word to the terminal."""
        encoding, context = self.tokenizer.encode(text, other), self.model.config.max_seq_len
        if len(encoding.ids) <= context:
            return encoding
        say(
            f"the text has {len(encoding.ids)} tokens, but the model's context is {context}: the "
            "end is left out"
        )
        return self._cut((text, other), context, 0, "longest_first")

    def windows(
        self, text: str, other: str | None = None, *, size: int | None = None
    ) -> list[tokenizers.Encoding]:
        """The tokens of a text in windows of at most `size` tokens, the model's context unless
        given, of which each repeats the last ones of that before; of a pair, each window has the
        whole first text.

        Raises DataError if the first of a pair leaves no room for the other.
        """
        size = min(size or self.model.config.max_seq_len, self.model.config.max_seq_len)
        overlap = min(size // 2, OVERLAP)
        marks = self.tokenizer.num_special_tokens_to_add(other is not None)
        first = len(self.tokenizer.encode(text, add_special_tokens=False).ids)
        if other is not None and first + marks + overlap >= size:
            raise DataError(
                f"the first text has {first} tokens, which leaves no room for the other in the "
                f"{size} that the model reads at a time. Shorten it."
            )
        strategy = "longest_first" if other is None else "only_second"
        encoding = self._cut((text, other), size, overlap, strategy)
        return [encoding, *encoding.overflowing]

    def outputs_of(self, texts: Sequence[tokenizers.Encoding]) -> list[dict[str, np.ndarray]]:
        """The outputs of each text's tokens [T, …], some texts computed at a time."""
        results: list[dict[str, np.ndarray]] = []
        for begin in range(0, len(texts), AT_ONCE):
            some = list(texts[begin : begin + AT_ONCE])
            filled = some + some[-1:] * (min(AT_ONCE, len(texts)) - len(some))  # one shape for all
            outputs = self.outputs(self.rows(filled))
            results += [
                {name: value[i, : len(text.ids)] for name, value in outputs.items()}
                for i, text in enumerate(some)
            ]
        return results

    def rows(self, texts: Sequence[tokenizers.Encoding]) -> dict[str, np.ndarray]:
        """Texts padded to the same length: tokens, real, and token types if the model uses them."""
        length = max(len(text.ids) for text in texts)
        names = {"tokens": "ids", "real": "attention_mask", "types": "type_ids"}
        if not self.has_types:
            del names["types"]
        rows = {
            name: np.stack([_pad_numbers(getattr(text, theirs), length) for text in texts])
            for name, theirs in names.items()
        }
        # RoBERTa tells padding by its token, too.
        pad = self.model.fields.integer("pad_token_id", 0)
        return rows | {
            "tokens": np.where(rows["real"], rows["tokens"], pad),
            "real": rows["real"].astype(bool),
        }

    def _cut(
        self, pair: tuple[str, str | None], size: int, overlap: int, strategy: str
    ) -> tokenizers.Encoding:
        self.tokenizer.enable_truncation(size, stride=overlap, strategy=strategy)
        try:
            return self.tokenizer.encode(*pair)
        finally:
            self.tokenizer.no_truncation()

    def problem_type(self, count: int) -> str:
        """The kind of a classifier's outputs, as transformers decides it: by `problem_type`;
        with a single label, whether it applies."""
        kind = self.model.fields.text("problem_type", "single_label_classification")
        return kind if count > 1 or kind == "regression" else "multi_label_classification"

    def labels(self, count: int) -> list[str]:
        """The class names from config.json."""
        names = self.model.fields.object("id2label", None)
        named: Mapping[str, Any] = {} if names is None else names.values
        return [str(named.get(str(i), f"LABEL_{i}")) for i in range(count)]


def open_reader(request: Request) -> Reader:
    """The model and the tokenizer in the request's directory, with the weights on the mesh.

    Raises DataError, MeshError, ConfigError or WeightsError for what does not fit.
    """
    tokenizer = _tokenizer(request.directory)
    described = describe(request.directory, tasks=request.tasks)
    mesh = choose_mesh(request.mesh, described.config, batch_size=jax.device_count())
    say(f"{described.architecture.name} of {request.directory} on mesh {dict(mesh.shape)}")
    has_types = reads_token_types(request.directory, described.config)
    return Reader(load_requested(request, mesh), tokenizer, has_types)


def parts_of(request: Request, names: str, *, count: int) -> list[str]:
    """The parts of the input, at least `count`. Raises DataError if one is missing or empty."""
    parts = [part.strip() for part in request.input.split(SEPARATOR)]
    if len(parts) < count or not all(parts):
        raise DataError(f"--input={request.input!r} is not {names}, separated by {SEPARATOR!r}")
    return parts


def _tokenizer(directory: Path) -> tokenizers.Tokenizer:
    tokenizer = needed_tokenizer(directory)
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def _pad_numbers(numbers: Sequence[int], length: int) -> np.ndarray:
    return np.pad(np.array(numbers, np.int32), (0, length - len(numbers)))


@partial(jax.jit, static_argnums=0)
def _run(
    graph: nnx.GraphDef[Any], parameters: Parameters, inputs: Mapping[str, jax.Array]
) -> Mapping[str, jax.Array]:
    return merge(graph, parameters)(**inputs)
