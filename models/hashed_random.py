"""Random numbers for `jax.random` that NeuronCores compute quickly, and identically on every mesh.

JAX's own generators are unsuitable here: Threefry takes some hundred integer operations per number
and is not fully supported by the device's compiler; rbg draws different numbers in a batch. Bits of
`HASHED` are a hash of the key and the element's index, suitable for dropout and sampling, but not
for cryptography:

    key = jax.random.key(0, impl=HASHED)
"""

import math
from collections.abc import Hashable

import jax
import jax.numpy as jnp
from jax.extend.random import define_prng_impl

_FIRST, _SECOND, _THIRD = 0x21F0AAAD, 0xB5297A4D, 0x735A2D97
_START = 0x9E3779B9
_FOLD, _SPLIT = 1, 2
_MURMUR = 0x85EBCA6B, 0xC2B2AE35


def mixed(x: jax.Array) -> jax.Array:
    """The finalizer of MurmurHash3 (Appleby), uint32: every bit of x changes every bit of it."""
    x = (x ^ (x >> 16)) * jnp.uint32(_MURMUR[0])
    x = (x ^ (x >> 13)) * jnp.uint32(_MURMUR[1])
    return x ^ (x >> 16)


def absorbed(state: jax.Array, word: jax.Array) -> jax.Array:
    """The state of a hash, uint32, after absorbing one more word; arrays broadcast."""
    return mixed(state ^ word) + jnp.uint32(_START)


def _bits(key: jax.Array, bit_width: int, shape: tuple[int, ...]) -> jax.Array:
    """Bits of a key uint32 [2], as unsigned integers of 8, 16, 32 or 64 bits."""
    if bit_width == 64:
        low, high = (_words(key + jnp.uint32(half), shape).astype(jnp.uint64) for half in (0, 1))
        return (high << 32) | low
    return _words(key, shape).astype(jnp.dtype(f"uint{bit_width}"))


def _words(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    # The second word comes in between, or keys that share the first would draw alike.
    numbers = jax.lax.iota(jnp.uint32, math.prod(shape)).reshape(shape)
    x = numbers ^ key[0]
    x = (x ^ (x >> 16)) * jnp.uint32(_FIRST)
    x = ((x ^ (x >> 15)) + key[1]) * jnp.uint32(_SECOND)
    x = (x ^ (x >> 14)) * jnp.uint32(_THIRD)
    return x ^ (x >> 15)


def _derive_keys(key: jax.Array, words: jax.Array, purpose: int) -> jax.Array:
    """Keys uint32 [..., 2] from a key [2] and a word [...] for each."""
    state = absorbed(jnp.uint32(purpose), key[0])
    state = absorbed(absorbed(state, key[1]), words)
    return jnp.stack([mixed(state), mixed(state + jnp.uint32(_START))], axis=-1)


def _seed(seed: jax.Array) -> jax.Array:
    high = seed >> 32 if seed.dtype.itemsize == 8 else jnp.zeros_like(seed)
    words = jnp.stack([high.astype(jnp.uint32), seed.astype(jnp.uint32)])
    return _derive_keys(words, jnp.uint32(0), 0)


def _split(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    words = jax.lax.iota(jnp.uint32, math.prod(shape)).reshape(shape)
    return _derive_keys(key, words, _SPLIT)


def _fold_in(key: jax.Array, number: jax.Array) -> jax.Array:
    return _derive_keys(key, jnp.asarray(number).astype(jnp.uint32), _FOLD)


HASHED: Hashable = define_prng_impl(
    key_shape=(2,),
    seed=_seed,
    split=_split,
    random_bits=_bits,
    fold_in=_fold_in,
    name="hashed",
    tag="hash",
)
"""The generator, for `impl=` of `jax.random.key`."""
