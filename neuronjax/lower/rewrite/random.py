"""`rng_bit_generator`: Threefry and Philox in 32-bit words, with the counters that XLA uses.

Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011; how numbers and
results correspond is XLA's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from neuronjax.hlo.graph import Op, Value
from neuronjax.lower.rewriter import Writer
from neuronjax.lower.values.storage import is_native

_WORD = np.dtype(np.uint32)
_LONG = np.dtype(np.uint64)

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA
_THREEFRY_GROUPS = 5

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_PHILOX_ROUNDS = 10


def rng_bit_generator(writer: Writer, op: Op) -> Sequence[Value] | None:
    """The new state and the bits; None of types that have no unsigned integer of their width."""
    (state,) = op.operands
    bits = op.results[1]
    if state.dtype != _LONG or not is_native(bits.dtype) or not math.prod(bits.shape):
        return None
    words = [_halves(writer, writer.slice(state, 0, i, i + 1)) for i in range(state.shape[0])]
    counters = _threefry if op.attributes["rng_algorithm"] == "THREE_FRY" else _philox
    new_words, unsigned = counters(writer, [w for pair in words for w in pair], bits)
    parts = [_joined(writer, *pair) for pair in zip(new_words[::2], new_words[1::2], strict=True)]
    parts = parts[: len(words) - 1]
    new_state = writer.concatenate([writer.slice(state, 0, 0, 1), *parts], 0)
    return new_state, _typed(writer, unsigned, bits)


def _halves(writer: Writer, long: Value) -> tuple[Value, Value]:
    """The low and the high word."""
    high = writer.add("shift_right_logical", long, writer.constant(32, long))
    return writer.convert(long, _WORD), writer.convert(high, _WORD)


def _joined(writer: Writer, low: Value, high: Value) -> Value:
    wide = writer.convert(high, _LONG)
    wide = writer.add("shift_left", wide, writer.constant(32, wide))
    return writer.add("or", writer.convert(low, _LONG), wide)


def _typed(writer: Writer, value: Value, like: Value) -> Value:
    """Unsigned numbers cut to the width of the result, as its type."""
    narrow = writer.convert(value, np.dtype(f"u{like.dtype.itemsize}"))
    narrow = writer.reshape(narrow, like.shape)
    if narrow.dtype == like.dtype:
        return narrow
    return writer.add("bitcast_convert", narrow, dtype=like.dtype)


def _numbers(writer: Writer, count: int) -> Value:
    return writer.add("iota", shape=(count,), dtype=_WORD, iota_dimension=0)


def _advanced(writer: Writer, words: Sequence[Value], step: Value) -> list[Value]:
    """A number of several words, low ones first, plus a word."""
    total = [writer.add("add", _spread(writer, words[0], step), step)]
    carry = writer.compare("LT", total[0], step)
    for index, word in enumerate(words[1:]):
        wide = _spread(writer, word, step)
        more = writer.convert(carry, _WORD)
        total.append(writer.add("add", wide, more))
        if index < len(words) - 2:
            carry = writer.compare("LT", total[-1], more)
    return total


def _spread(writer: Writer, word: Value, like: Value) -> Value:
    """The word in all elements of a shape."""
    if word.shape == like.shape:
        return word
    return writer.broadcast(writer.reshape(word, ()), like.shape, ())


def _threefry(writer: Writer, words: Sequence[Value], bits: Value) -> tuple[list[Value], Value]:
    """Two words for each number of the counter: neighbours along one dimension, or one of 64 bits.

    The counter runs over half of the result's shape.
    """
    key, start = words[:2], words[2:4]
    shape = list(bits.shape) or [1]
    split = _split_dimension(shape)
    half = list(shape)
    wide = bits.dtype.itemsize == 8
    if not wide:
        half[split] = -(-shape[split] // 2)
    count = math.prod(half)
    low, high = _advanced(writer, start, _numbers(writer, count))
    low_bits, other = threefry(writer, key, (low, high))
    new_counter = _advanced(writer, start, writer.constant(count, start[0]))
    if wide:
        return new_counter, _joined(writer, low_bits, other)
    pairs = [*half[: split + 1], 1, *half[split + 1 :]]
    both = writer.concatenate(
        [writer.reshape(low_bits, pairs), writer.reshape(other, pairs)], split + 1
    )
    full = [*half[:split], 2 * half[split], *half[split + 1 :]]
    result = writer.reshape(both, full)
    return new_counter, writer.slice(result, split, 0, shape[split])


def _split_dimension(shape: Sequence[int]) -> int:
    """The first even dimension, else the first of the greatest."""
    even = [dim for dim, size in enumerate(shape) if size % 2 == 0]
    return even[0] if even else shape.index(max(shape))


def threefry(writer: Writer, key: Sequence[Value], counter: Sequence[Value]) -> tuple[Value, Value]:
    """Threefry-2x32 of 20 rounds."""
    left, other = counter
    keys = [*key, writer.add("xor", writer.add("xor", *key), writer.constant(_PARITY, key[0]))]
    left = writer.add("add", _spread(writer, keys[0], left), left)
    other = writer.add("add", _spread(writer, keys[1], other), other)
    for group in range(_THREEFRY_GROUPS):
        for rotation in _ROTATIONS[group % 2]:
            left = writer.add("add", left, other)
            other = writer.add("xor", left, _rotated(writer, other, rotation))
        first, second = keys[(group + 1) % 3], keys[(group + 2) % 3]
        second = writer.add("add", second, writer.constant(group + 1, second))
        left = writer.add("add", _spread(writer, first, left), left)
        other = writer.add("add", _spread(writer, second, other), other)
    return left, other


def _rotated(writer: Writer, value: Value, distance: int) -> Value:
    left = writer.add("shift_left", value, writer.constant(distance, value))
    right = writer.add("shift_right_logical", value, writer.constant(32 - distance, value))
    return writer.add("or", left, right)


def _philox(writer: Writer, words: Sequence[Value], bits: Value) -> tuple[list[Value], Value]:
    """Four words for each number of the counter, one after the other.

    A state without an upper half of the counter takes the key for it.
    """
    key, start = words[:2], (*words[2:6], *words[:2])[:4]
    size = math.prod(bits.shape)
    per_result = 2 if bits.dtype.itemsize == 8 else 1
    count = -(-size * per_result // 4)
    counter = _advanced(writer, start, _numbers(writer, count))
    words_of_results = philox(writer, key, counter)
    new_counter = _advanced(writer, start, writer.constant(count, start[0]))
    if per_result == 2:
        words_of_results = [
            _joined(writer, *words_of_results[:2]),
            _joined(writer, *words_of_results[2:]),
        ]
    columns = [writer.reshape(word, (count, 1)) for word in words_of_results]
    flat = writer.reshape(writer.concatenate(columns, 1), (count * len(columns),))
    return new_counter, writer.slice(flat, 0, 0, size)


def philox(writer: Writer, key: Sequence[Value], counter: Sequence[Value]) -> list[Value]:
    """Philox-4x32 of 10 rounds."""
    x0, x1, x2, x3 = counter
    keys = list(key)
    for _ in range(_PHILOX_ROUNDS):
        high0, low0 = _product(writer, x0, _MULTIPLIERS[0])
        high1, low1 = _product(writer, x2, _MULTIPLIERS[1])
        x0 = writer.add("xor", _spread(writer, keys[0], x1), writer.add("xor", high1, x1))
        x2 = writer.add("xor", _spread(writer, keys[1], x3), writer.add("xor", high0, x3))
        x1, x3 = low1, low0
        keys = [
            writer.add("add", key, writer.constant(step, key))
            for key, step in zip(keys, _KEY_STEPS, strict=True)
        ]
    return [x0, x1, x2, x3]


def _product(writer: Writer, word: Value, factor: int) -> tuple[Value, Value]:
    """The high and the low word of a product."""
    other = writer.constant(factor, word)
    return writer.add("multiply_high", word, other), writer.add("multiply", word, other)


REWRITES = {"rng_bit_generator": rng_bit_generator}
"""Operation -> what it is in terms of others."""
