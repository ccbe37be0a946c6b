"""Batches of whole texts on the device."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from launch.pooling.buckets import Shape, TextBuckets
from launch.pooling.heads import TaskHead, Texts
from launch.pooling.text import Text
from models.parameters import Parameters, merge
from models.pretrained import Pretrained
from models.sentences.model import LoadedHead


class PoolingRunner:
    """The work of a Batcher: texts become vectors, or logits of classes."""

    def __init__(
        self,
        model: Pretrained,
        mesh: Mesh,
        buckets: TextBuckets,
        head: TaskHead,
        sentence: LoadedHead,
        *,
        has_types: bool,
    ) -> None:
        self.buckets = buckets
        self._parameters = model.parameters, sentence.parameters
        self._replicated = NamedSharding(mesh, PartitionSpec())
        # RoBERTa tells padding by its token, too.
        self._pad = model.fields.integer("pad_token_id", 0)
        self._forward = partial(
            _forward,
            (model.graph, sentence.graph),
            head,
            has_types,
        )
        self._compiled: dict[Shape, Any] = {}

    def warm_up(self, on_program: Callable[[Shape], None] = lambda shape: None) -> None:
        """Compiles every shape; `on_program` is told of each."""
        for shape in self.buckets:
            self._program(shape)
            on_program(shape)

    def group(self, waiting: Sequence[Text]) -> Sequence[int]:
        """The first text, and the next ones of its width."""
        widths = [self.buckets.width(len(text.tokens)) for text in waiting]
        alike = [place for place, width in enumerate(widths) if width == widths[0]]
        return alike[: self.buckets.rows_of(widths[0])[-1]]

    def compute(self, items: Sequence[Text]) -> Sequence[np.ndarray]:
        """FP32 [D] or [L] of each text; all have the same width."""
        width = self.buckets.width(max(len(text.tokens) for text in items))
        shape = self.buckets.shape(len(items), width)
        tokens = np.full(shape, self._pad, np.int32)
        types = np.zeros(shape, np.int32)
        counts = np.ones(shape.rows, np.int32)  # no row is empty
        for row, text in enumerate(items):
            counts[row] = len(text.tokens)
            tokens[row, : len(text.tokens)] = text.tokens
            types[row, : len(text.tokens)] = text.types
        made = self._program(shape)(self._parameters, Texts(tokens, types, counts))
        return list(np.asarray(made)[: len(items)])

    def _program(self, shape: Shape) -> Any:
        program = self._compiled.get(shape)
        if program is None:
            program = self._compiled[shape] = self._compile(shape)
        return program

    def _compile(self, shape: Shape) -> Any:
        def array(*sizes: int) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct(sizes, np.int32, sharding=self._replicated)

        texts = Texts(array(*shape), array(*shape), array(shape.rows))
        program = jax.jit(self._forward, out_shardings=self._replicated)
        parameters = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding),
            self._parameters,
        )
        return program.lower(parameters, texts).compile()


def _forward(
    graphs: tuple[nnx.GraphDef[Any], nnx.GraphDef[Any]],
    head: TaskHead,
    has_types: bool,
    parameters: tuple[Parameters, Parameters],
    texts: Texts,
) -> jax.Array:
    model, sentence = map(merge, graphs, parameters)
    return head.compute(model, texts, sentence, has_types)
