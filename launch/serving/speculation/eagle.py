"""A block on the model's last output guesses the next one, and so on (Li et al., "EAGLE", 2024).

Beside the keys and values of its block, its cache has the model's output after every token: the
next token's guess starts there, whoever had the blocks before. So texts that share a prefix share
its outputs too.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from launch.serving.runner.arrays import HEADER, make_pages, new_tokens
from launch.serving.runner.meter import Meter
from launch.serving.sampling.draw import Settings, stateless_draw
from launch.serving.sampling.variants import SAMPLED
from launch.serving.scheduler.limits import SchedulerLimits
from launch.serving.scheduler.sequences import Sequence
from launch.serving.scheduler.steps import Step
from launch.serving.speculation.shaped import Shaped
from models.layers.paged_cache import Pages, Rows, places
from models.parameters import merge


class State(NamedTuple):
    """Pages of the block, and outputs [N, Z, D] of the model in the same places."""

    pages: Pages
    outputs: jax.Array


class EagleProposer:
    """Reads every output of the model, and guesses token after token in one program."""

    reads_all_outputs = True

    def __init__(
        self,
        graph: nnx.GraphDef[Any],
        parameters: Mapping[str, jax.Array],
        mesh: Mesh,
        limits: SchedulerLimits,
    ) -> None:
        """parameters: of `models.decoder.eagle.with_ends`."""
        self.guesses, self.meter = limits.guesses, Meter()
        self._parameters, self._limits = parameters, limits
        replicated = NamedSharding(mesh, PartitionSpec())
        blocks, size = limits.blocks + 1, limits.block_size
        (pages,) = make_pages(graph, parameters, mesh, blocks, size)
        width = parameters["fc.kernel"].shape[1]
        empty = partial(jnp.zeros, (blocks, size, width), pages.keys.dtype)
        self._state = State(pages, jax.jit(empty, out_shardings=replicated)())
        places = jax.tree.map(lambda leaf: leaf.sharding, self._state)
        self._guess = Shaped(
            "eagle: guess",
            partial(guess, graph, self.guesses),
            donate_argnums=1,
            out_shardings=(replicated, places),
        )
        self._read = Shaped(
            "eagle: read", partial(read, graph), donate_argnums=1, out_shardings=places
        )
        self._read_guesses = Shaped(
            "eagle: read guesses",
            partial(read_guesses, graph),
            donate_argnums=1,
            out_shardings=places,
        )

    def compile_all(self) -> Iterator[Any]:
        """Compiled as they are called first: they are small."""
        return iter(())

    def worth_guessing(self, sequence: Sequence) -> bool:
        """True: the head has a guess for every text."""
        return True

    def observe(self, step: Step, inputs: np.ndarray, last: jax.Array, outputs: jax.Array) -> None:
        """Reads the tokens of a step with the outputs before them."""
        if step.is_decode and not any(sequence.speculates for sequence in step.sequences):
            return
        self._state = self._read.run(
            self.meter, self._parameters, self._state, last, inputs, outputs
        )

    def propose(self, step: Step, inputs: np.ndarray, settings: Settings) -> jax.Array:
        """The guesses of the head, on the device."""
        guesses, self._state = self._guess.run(
            self.meter, self._parameters, self._state, inputs, settings
        )
        return guesses

    def verified(
        self, step: Step, inputs: np.ndarray, guesses: Any, tokens: jax.Array, outputs: jax.Array
    ) -> None:
        """Reads the guesses with the model's outputs in place of its own. What it has read of wrong
        ones is overwritten before it looks at it again."""
        self._state = self._read_guesses.run(
            self.meter, self._parameters, self._state, inputs, guesses, outputs
        )


def guess(
    graph: nnx.GraphDef[Any],
    guesses: int,
    parameters: Mapping[str, jax.Array],
    state: State,
    inputs: jax.Array,
    settings: Settings,
) -> tuple[jax.Array, State]:
    """Tokens int32 [R, K] after the first one of each row, and the state."""
    start, count = inputs[:, 0], inputs[:, 1]
    token, tables = inputs[:, HEADER], inputs[:, HEADER + 1 :]
    eagle = merge(graph, parameters)

    def step(carry: tuple[jax.Array, ...], index: jax.Array) -> tuple[Any, jax.Array]:
        token, before, pages = carry
        rows = Rows(tables, start + index, (index < count).astype(jnp.int32))
        outputs, pages = eagle.extend_pages(token[:, None], before, pages, rows)
        place = settings._replace(numbers=settings.numbers + index)
        token = stateless_draw(SAMPLED, eagle.logits_of(outputs[:, 0]), place)
        return (token, outputs, pages), token

    carry: Any = (token, _before(state.outputs, Rows(tables, start, count)), state.pages)
    (_, _, pages), tokens = jax.lax.scan(step, carry, jnp.arange(guesses))
    return tokens.T, state._replace(pages=pages)


def read(
    graph: nnx.GraphDef[Any],
    parameters: Mapping[str, jax.Array],
    state: State,
    last: jax.Array,
    inputs: jax.Array,
    outputs: jax.Array,
) -> State:
    """The state with the tokens of a step and the model's outputs [R, T, D] after them."""
    tokens, rows = new_tokens(inputs, outputs.shape[1], last)
    return _with(graph, parameters, state, tokens, rows, outputs)


def read_guesses(
    graph: nnx.GraphDef[Any],
    parameters: Mapping[str, jax.Array],
    state: State,
    inputs: jax.Array,
    guesses: jax.Array,
    outputs: jax.Array,
) -> State:
    """The state with the tokens of a step with guesses and the model's outputs after them."""
    tokens = jnp.concatenate([inputs[:, HEADER : HEADER + 1], guesses], axis=1)
    rows = Rows(inputs[:, HEADER + 1 :], inputs[:, 0], inputs[:, 1])
    return _with(graph, parameters, state, tokens, rows, outputs)


def _with(
    graph: nnx.GraphDef[Any],
    parameters: Mapping[str, jax.Array],
    state: State,
    tokens: jax.Array,
    rows: Rows,
    outputs: jax.Array,
) -> State:
    outputs = outputs.astype(state.outputs.dtype)
    before = jnp.concatenate([_before(state.outputs, rows), outputs[:, :-1]], axis=1)
    _, pages = merge(graph, parameters).extend_pages(tokens, before, state.pages, rows)
    where = places(rows, tokens.shape[1], state.outputs.shape[1])
    return State(pages, state.outputs.at[where].set(outputs))


def _before(outputs: jax.Array, rows: Rows) -> jax.Array:
    """The outputs [R, 1, D] before the first new token of each row; zeros where none is."""
    size = outputs.shape[1]
    place = jnp.maximum(rows.starts - 1, 0)
    block = jnp.take_along_axis(rows.tables, (place // size)[:, None], axis=1)[:, 0]
    taken = outputs[block, place % size]
    return jnp.where((rows.starts > 0)[:, None], taken, 0)[:, None]
