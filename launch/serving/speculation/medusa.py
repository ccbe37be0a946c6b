"""Heads on the model's last output guess the tokens after the next (Cai et al., "Medusa", 2024).

Head i is one block x + silu(W x + b), or several, and a matrix to the vocabulary. Files are those
of the paper's code: tensors `i.j.linear.weight` and `i.j.linear.bias` of blocks, then `i.n.weight`.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from launch.serving.errors import ServingError
from launch.serving.runner.meter import Meter
from launch.serving.sampling.draw import Settings
from launch.serving.scheduler.limits import SchedulerLimits
from launch.serving.scheduler.sequences import Sequence
from launch.serving.scheduler.steps import Step
from launch.serving.speculation.shaped import Shaped
from models.errors import WeightsError
from models.weights.safetensors import StoredTensor, read_header

FILE = "medusa_lm_head.safetensors"


class Heads(NamedTuple):
    """K heads of n blocks."""

    weights: jax.Array  # [K, n, D, D]
    biases: jax.Array  # [K, n, D]
    tables: jax.Array  # [K, V, D]


def read_heads(directory: Path, count: int, dim: int, vocab_size: int, dtype: str) -> Heads:
    """The first `count` heads of a directory. Raises ServingError for others, WeightsError for a
    file that cannot be read."""
    file = directory / FILE
    try:
        tensors = read_header(file)
        blocks = sum(name.startswith("0.") and name.endswith(".linear.weight") for name in tensors)
        heads = range(count)
        read = partial(_stack_tensors, tensors)
        values = Heads(
            read([[f"{i}.{j}.linear.weight" for j in range(blocks)] for i in heads]),
            read([[f"{i}.{j}.linear.bias" for j in range(blocks)] for i in heads]),
            read([[f"{i}.{blocks}.weight"] for i in heads])[:, 0],
        )
    except KeyError as error:
        raise ServingError(
            f"{file} has no tensor {error}: fewer heads than num_speculative_tokens={count}?"
        ) from error
    except WeightsError as error:
        raise ServingError(f"no heads in {directory}: {error}") from error
    if values.tables.shape[1:] != (vocab_size, dim):
        raise ServingError(
            f"the heads of {file} are for {values.tables.shape[1]} tokens of width "
            f"{values.tables.shape[2]}, but the model has {vocab_size} of width {dim}"
        )
    return Heads(*(array.astype(dtype) for array in values))


def _stack_tensors(tensors: dict[str, StoredTensor], names: list[list[str]]) -> jax.Array:
    return jnp.stack([jnp.stack([jnp.asarray(tensors[n].view()) for n in row]) for row in names])


class Medusa:
    """Remembers the output before the last token of each slot."""

    reads_all_outputs = False

    def __init__(self, heads: Heads, mesh: Mesh, limits: SchedulerLimits) -> None:
        self.guesses, self.meter = limits.guesses, Meter()
        self._limits = limits
        replicated = NamedSharding(mesh, PartitionSpec())
        self._heads = jax.device_put(heads, replicated)
        dim, dtype = heads.tables.shape[2], heads.tables.dtype
        empty = jnp.zeros((limits.slots + 1, dim), dtype)
        self._outputs = jax.device_put(empty, replicated)
        shaped = partial(Shaped, out_shardings=replicated)
        self._remember = shaped("medusa: remember", remember, donate_argnums=0)
        self._guess = shaped("medusa: guess", guess)
        self._keep = shaped("medusa: keep", keep, donate_argnums=0)

    def compile_all(self) -> Iterator[Any]:
        """Compiled as they are called first: they are small."""
        return iter(())

    def worth_guessing(self, sequence: Sequence) -> bool:
        """True: the heads have a guess for every text."""
        return True

    def observe(self, step: Step, inputs: np.ndarray, last: jax.Array, outputs: jax.Array) -> None:
        """Keeps the outputs of a step, which the heads guess from."""
        self._outputs = self._remember.run(self.meter, self._outputs, inputs[:, 2], outputs)

    def propose(self, step: Step, inputs: np.ndarray, settings: Settings) -> jax.Array:
        """The likeliest token of each head."""
        guesses: jax.Array = self._guess.run(self.meter, self._heads, self._outputs, inputs[:, 2])
        return guesses

    def verified(
        self, step: Step, inputs: np.ndarray, guesses: Any, tokens: jax.Array, outputs: jax.Array
    ) -> None:
        """Keeps the output before the last token that is right."""
        rows = step.bucket.rows
        slots = np.full(rows, self._limits.slots, np.int32)
        slots[: len(step.slots)] = step.slots
        counts = np.ones(rows, np.int32)
        counts[: len(step.slots)] = step.counts
        self._outputs = self._keep.run(
            self.meter, self._outputs, slots, counts, guesses, tokens, outputs
        )


def guess(heads: Heads, outputs: jax.Array, slots: jax.Array) -> jax.Array:
    """The guesses int32 [R, K] from the outputs [S + 1, D] of slots [R]."""
    x = jnp.broadcast_to(outputs[slots][:, None], (len(slots), *heads.tables.shape[::2]))
    for block in range(heads.weights.shape[1]):
        hidden = jnp.einsum("rkd,ked->rke", x, heads.weights[:, block])
        x = x + jax.nn.silu(hidden + heads.biases[:, block])
    return jnp.argmax(jnp.einsum("rkd,kvd->rkv", x, heads.tables), axis=-1).astype(jnp.int32)


def remember(kept: jax.Array, slots: jax.Array, outputs: jax.Array) -> jax.Array:
    """The outputs [S + 1, D] with others [R, D] for slots [R]."""
    return kept.at[slots].set(outputs.astype(kept.dtype))


def keep(
    kept: jax.Array,
    slots: jax.Array,
    counts: jax.Array,
    guesses: jax.Array,
    tokens: jax.Array,
    outputs: jax.Array,
) -> jax.Array:
    """The outputs [S + 1, D] with those before the last token that is right, of the outputs
    [R, T, D] of a step whose rows had counts [R] new tokens."""
    drawn = tokens.reshape(len(slots), -1)[:, :-1]
    right = (guesses == drawn) & (jnp.arange(guesses.shape[1]) < counts[:, None] - 1)
    place = jnp.sum(jnp.cumprod(right.astype(jnp.int32), axis=1), axis=1)
    return remember(kept, slots, jnp.take_along_axis(outputs, place[:, None, None], axis=1)[:, 0])
