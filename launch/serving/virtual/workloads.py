"""The programs of serving, for `neuronjax estimate` and `sweep`: nothing here allocates."""

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, PartitionSpec

from launch.quantisation.settings import WEIGHTS
from launch.serving.copies import COPIES
from launch.serving.runner.arrays import forward, forward_guesses
from launch.serving.runner.transfer import moving
from launch.serving.sampling.draw import settings_shapes
from launch.serving.speculation import draft_model, eagle, medusa
from launch.serving.virtual.shapes import Shapes
from launch.workloads import MODELS, model_config
from models.decoder.eagle import make_eagle, with_ends

Traced = tuple[Callable[..., Any], tuple[Any, ...]]
"""A program and the shapes of its arguments."""


def serving_step(
    mesh: AbstractMesh,
    *,
    program: str = "step",
    batch: int = 1,
    model: str = "70b",
    tokens: int = 1,
    context: int = 4096,
    block_size: int = 32,
    blocks: int = 2048,
    dtype: str = "bfloat16",
    weights: str | None = None,
    cache_dtype: str | None = None,
    guesses: int = 0,
    adapters: int = 0,
    lora_rank: int = 16,
    layers: int | None = None,
) -> dict[str, Any]:
    """A program (see PROGRAMS) of the bucket of `batch` rows with `tokens` new tokens each, which
    look at up to `context` tokens in a cache of `blocks` blocks, shared as the mesh says
    (`kv_replica`, `attention_data`). `weights` is a name of `launch.quantisation`, for linear maps
    with narrow weights; beside these is room for so many `adapters`. `guesses` are of each row."""
    if program in SHALLOW:
        layers = 1
    sizes = {"max_seq_len": context, "dtype": dtype, "param_dtype": dtype}
    config = model_config(model, mesh, layers, pad=True, **sizes)  # as the server pads
    shapes = Shapes(
        mesh=mesh,
        config=config,
        rows=batch,
        tokens=tokens,
        table=-(-context // block_size),
        block_size=block_size,
        blocks=blocks,
        storage=None if weights is None else WEIGHTS[weights],
        cache_dtype=cache_dtype or dtype,
        guesses=guesses,
        adapters=adapters,
        lora_rank=lora_rank,
    )
    function, arguments = PROGRAMS[program](shapes)
    deep = {} if program in SHALLOW else {"layers": MODELS[model].num_layers}
    counts = {"tokens": batch * tokens, "samples": batch}
    named = inspect.signature(function).parameters
    kinds = {name: kind for name, kind in _KINDS.items() if name in named}
    return {"fn": function, "arguments": arguments, "kinds": kinds, **counts, **deep}


_KINDS = {"parameters": "weights", "pages": "cache", "inputs": "inputs"}
"""What arguments of programs are, by the names of the programs' parameters."""


def _step(shapes: Shapes, *, whole: bool = False) -> Traced:
    """The model, and each row's likeliest token."""
    graph, parameters = shapes.model

    def step(parameters: Any, pages: Any, last: jax.Array, inputs: jax.Array) -> Any:
        run = partial(forward, graph, shapes.tokens, whole)
        logits, outputs, pages = run(parameters, pages, last, inputs)
        return _likeliest(logits), outputs if whole else None, pages

    return jax.jit(step, donate_argnums=1), (parameters, shapes.pages, shapes.last, shapes.inputs)


def _checking(shapes: Shapes) -> Traced:
    """The model on tokens and guesses, and the likeliest token in each place."""
    graph, parameters = shapes.model

    def check(parameters: Any, pages: Any, inputs: jax.Array, guesses: jax.Array) -> Any:
        logits, outputs, pages = forward_guesses(graph, parameters, pages, inputs, guesses)
        return _likeliest(logits), outputs, pages

    return jax.jit(check, donate_argnums=1), (
        parameters,
        shapes.pages,
        shapes.inputs_of(1),
        shapes.guessed,
    )


def _following(shapes: Shapes) -> Traced:
    """A draft model reads the tokens of a step."""
    graph, parameters = shapes.model

    def follow(parameters: Any, pages: Any, last: jax.Array, inputs: jax.Array) -> Any:
        return forward(graph, shapes.tokens, False, parameters, pages, last, inputs)[2]

    return jax.jit(follow, donate_argnums=1), (parameters, shapes.pages, shapes.last, shapes.inputs)


def _guessing(shapes: Shapes) -> Traced:
    """The program by which a draft model guesses."""
    graph, parameters = shapes.model
    settings = settings_shapes(shapes.rows, shapes.replicated)
    guess = partial(draft_model.guess, graph, shapes.guesses)
    return jax.jit(guess, donate_argnums=1), (parameters, shapes.pages, shapes.inputs, settings)


def _eagle(shapes: Shapes) -> tuple[Any, Any, eagle.State]:
    """An EAGLE head: its structure, its parameters with the model's ends, and its state."""
    model = shapes.config
    graph, own = make_eagle(model, model)
    parameters = shapes.sharded(graph, with_ends(own, shapes.model[1]))
    outputs = shapes.array((*shapes.pages_shape[:2], model.dim), model.dtype)
    return graph, parameters, eagle.State(shapes.pages[0], outputs)


def _eagle_guessing(shapes: Shapes) -> Traced:
    graph, parameters, state = _eagle(shapes)
    settings = settings_shapes(shapes.rows, shapes.replicated)
    guess = partial(eagle.guess, graph, shapes.guesses)
    return jax.jit(guess, donate_argnums=1), (parameters, state, shapes.inputs, settings)


def _eagle_reading(shapes: Shapes) -> Traced:
    graph, parameters, state = _eagle(shapes)
    read = jax.jit(partial(eagle.read, graph), donate_argnums=1)
    return read, (parameters, state, shapes.last, shapes.inputs, shapes.outputs)


def _eagle_reading_guesses(shapes: Shapes) -> Traced:
    graph, parameters, state = _eagle(shapes)
    read = jax.jit(partial(eagle.read_guesses, graph), donate_argnums=1)
    return read, (parameters, state, shapes.inputs_of(1), shapes.guessed, shapes.outputs)


def _kept(shapes: Shapes) -> jax.ShapeDtypeStruct:
    """The output before the last token of each slot."""
    return shapes.array((shapes.rows + 1, shapes.config.dim), shapes.config.dtype)


def _medusa_guessing(shapes: Shapes) -> Traced:
    config, count = shapes.config, shapes.guesses
    heads = medusa.Heads(
        shapes.array((count, 1, config.dim, config.dim), config.dtype),
        shapes.array((count, 1, config.dim), config.dtype),
        shapes.array((count, config.vocab_size, config.dim), config.dtype),
    )
    return jax.jit(medusa.guess), (heads, _kept(shapes), shapes.slots)


def _medusa_reading(shapes: Shapes) -> Traced:
    outputs = shapes.array((shapes.rows, shapes.config.dim), shapes.config.dtype)
    arguments = _kept(shapes), shapes.slots, outputs
    return jax.jit(medusa.remember, donate_argnums=0), arguments


def _medusa_reading_guesses(shapes: Shapes) -> Traced:
    drawn = shapes.array((shapes.rows * shapes.tokens,), "int32")
    arguments = _kept(shapes), shapes.slots, shapes.slots, shapes.guessed, drawn, shapes.outputs
    return jax.jit(medusa.keep, donate_argnums=0), arguments


def _moving(shapes: Shapes) -> Traced:
    """The blocks of a text move from one copy of the model to the next."""
    count = 2 * shapes.config.num_layers
    shape = shapes.mesh.shape[COPIES], count, shapes.table, *shapes.pages_shape[1:]
    spec = PartitionSpec(COPIES, None, *shapes.pages_spec)
    return moving(shapes.mesh, [spec]), ([shapes.array(shape, shapes.cache_dtype, *spec)],)


def _likeliest(logits: jax.Array) -> jax.Array:
    return jnp.argmax(logits, axis=-1).astype(jnp.int32)


PROGRAMS: Mapping[str, Callable[[Shapes], Traced]] = {
    "step": _step,
    "whole step": partial(_step, whole=True),
    "checking": _checking,
    "following": _following,
    "guessing": _guessing,
    "eagle guessing": _eagle_guessing,
    "eagle reading": _eagle_reading,
    "eagle reading guesses": _eagle_reading_guesses,
    "medusa guessing": _medusa_guessing,
    "medusa reading": _medusa_reading,
    "medusa reading guesses": _medusa_reading_guesses,
    "moving": _moving,
}
SHALLOW = {name for name in PROGRAMS if name.startswith(("eagle", "medusa"))}
"""Programs that have no more layers for a deeper model."""
