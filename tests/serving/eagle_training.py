"""A head for a tiny decoder, trained on what the decoder writes."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax

from models.decoder.eagle import make_eagle, with_ends
from models.parameters import Parameters, merge
from tests.serving.engines import Model

ROWS, LENGTH, STEPS = 64, 32, 300


def trained_eagle(model: Model) -> Parameters:
    """Its own parameters, as arrays of the host."""
    cpu = jax.devices("cpu")[0]
    with jax.default_device(cpu):
        decoder = jax.device_put(jax.tree.map(np.asarray, dict(model.parameters)), cpu)
        graph, abstract = make_eagle(model.config, model.config)
        tokens, outputs = _texts(model, decoder)

        def loss(own: Parameters) -> jax.Array:
            eagle = merge(graph, with_ends(own, decoder))
            guessed = eagle(tokens, outputs)[:, 1:]
            wanted = jax.nn.softmax(_logits(eagle, outputs[:, 1:]))
            text = optax.softmax_cross_entropy(_logits(eagle, guessed), wanted).mean()
            return text + optax.huber_loss(guessed, outputs[:, 1:]).mean()

        optimizer = optax.adam(optax.cosine_decay_schedule(1e-2, STEPS))

        def step(carry, _):  # type: ignore[no-untyped-def]
            own, state = carry
            updates, state = optimizer.update(jax.grad(loss)(own), state)
            return (optax.apply_updates(own, updates), state), None

        @jax.jit
        def train(own: Parameters) -> Parameters:
            return jax.lax.scan(step, (own, optimizer.init(own)), length=STEPS)[0][0]

        rng = np.random.default_rng(0)
        own = {
            name: jnp.asarray(
                np.ones(leaf.shape) if leaf.ndim == 1 else 0.2 * rng.normal(size=leaf.shape),
                jnp.float32,
            )
            for name, leaf in abstract.items()
        }
        return {name: np.asarray(leaf) for name, leaf in train(own).items()}


def _logits(eagle, outputs: jax.Array) -> jax.Array:  # type: ignore[no-untyped-def]
    return jax.vmap(eagle.logits_of, in_axes=1, out_axes=1)(outputs)


def _texts(model: Model, decoder: Parameters) -> tuple[jax.Array, jax.Array]:
    """Tokens [R, T], greedy after two random ones, and the decoder's outputs after them."""
    vocabulary = model.config.vocab_size
    first = np.random.default_rng(0).integers(0, vocabulary, (ROWS, LENGTH)).astype(np.int32)

    @jax.jit
    def write(tokens: jax.Array) -> tuple[jax.Array, jax.Array]:
        decode = partial(merge, model.graph)(decoder)

        def next_token(tokens: jax.Array, place: jax.Array) -> tuple[jax.Array, None]:
            likeliest = jnp.argmax(decode(tokens), axis=-1).astype(jnp.int32)
            at_place = (jnp.arange(LENGTH) == place) & (place > 1 + jnp.arange(ROWS) % 16)[:, None]
            return jnp.where(at_place, jnp.roll(likeliest, 1, axis=1), tokens), None

        tokens, _ = jax.lax.scan(next_token, tokens, jnp.arange(2, LENGTH))
        return tokens, decode.encode(tokens)

    return write(first)
