"""Operations that move elements without computing: slices, pads, gathers, updates, sorts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import jax.numpy as jnp
import numpy as np

from tests.conformance.random_programs.draw import (
    MAX_ELEMENTS,
    Draw,
    Line,
    Unsuitable,
    exact,
    finite,
    integral,
    line,
    nonempty,
    numeric,
    ranked,
    wide,
)
from tests.conformance.random_programs.facts import (
    Facts,
    is_float,
    joined,
    summed,
    through_float32,
)
from tests.conformance.random_programs.program import Value, literal

Kind = Callable[[Draw], Line]


def slices(draw: Draw) -> Line:
    x = draw.value(lambda value: bool(value.shape))
    starts = [draw.integer(0, max(0, dim - 1)) for dim in x.shape]
    limits = [
        draw.integer(start if draw.chance(0.1) else min(start + 1, dim), dim)
        for start, dim in zip(starts, x.shape, strict=True)
    ]
    strides = tuple(draw.choice((1, 1, 1, 2, 3)) for _ in x.shape)
    return line(f"lax.slice({x.name}, {starts}, {limits}, {strides})", [x], x.facts)


def index(draw: Draw) -> Line:
    """numpy's ways of indexing."""
    x = draw.value(ranked)

    def one(dim: int) -> str:
        step = draw.choice((1, -1, 2, -2, 3))
        bounds = [str(draw.integer(-dim, dim)) if draw.chance(0.4) else "" for _ in range(2)]
        at = draw.integer(-dim, dim - 1)
        integers = f"np.array({[draw.integer(-dim - 1, dim) for _ in range(3)]})"
        options = (
            f"{bounds[0]}:{bounds[1]}:{step}", ":", str(at), f"jnp.int32({at})", "None, :",
            integers,
        )  # fmt: skip
        return draw.choice(options)

    count = draw.integer(1, len(x.shape))
    text = ", ".join(one(dim) for dim in x.shape[:count])
    return line(f"{x.name}[{text}]", [x], x.facts)


def pad(draw: Draw) -> Line:
    x = draw.value()
    config = [
        (draw.integer(-2, 3), draw.integer(-2, 3), draw.choice((0, 0, 0, 1, 2))) for _ in x.shape
    ]
    scalar, facts = draw.scalar(x.dtype)
    return line(f"lax.pad({x.name}, {scalar}, {config})", [x], joined(x.facts, facts))


def reverse(draw: Draw) -> Line:
    x = draw.value(lambda value: bool(value.shape))
    axes = draw.permutation(len(x.shape))[: draw.integer(1, len(x.shape))]
    return line(f"lax.rev({x.name}, {axes})", [x], x.facts)


def transpose(draw: Draw) -> Line:
    x = draw.value(lambda value: len(value.shape) > 1)
    return line(f"lax.transpose({x.name}, {draw.permutation(len(x.shape))})", [x], x.facts)


def reshape(draw: Draw) -> Line:
    x = draw.value(nonempty)
    dims: list[int] = []
    rest = x.size
    while rest > 1 and len(dims) < 3:
        divisors = [d for d in range(2, min(rest, 64) + 1) if rest % d == 0] or [rest]
        dims.append(draw.choice(divisors))
        rest //= dims[-1]
    shape = tuple(draw.choice(((*dims, rest), (rest, *dims), (1, *dims, rest))))
    return line(f"jnp.reshape({x.name}, {shape})", [x], x.facts)


def broadcast(draw: Draw) -> Line:
    x = draw.value(lambda value: value.size < 300 and len(value.shape) < 4)
    shape = list(x.shape)
    places = list(range(len(shape)))
    at = draw.integer(0, len(shape))
    shape.insert(at, draw.choice((1, 2, 3, 7)))
    places = [place + (place >= at) for place in places]
    for place in places:
        if shape[place] == 1 and draw.chance(0.5):
            shape[place] = draw.choice((2, 5))
    return line(f"lax.broadcast_in_dim({x.name}, {tuple(shape)}, {tuple(places)})", [x], x.facts)


def concatenate(draw: Draw) -> Line:
    x = draw.value(lambda value: bool(value.shape) and value.size < 1000)
    axis = draw.integer(0, len(x.shape) - 1)

    def fits(value: Value) -> bool:
        shapes = [list(each.shape) for each in (x, value)]
        if value.dtype != x.dtype or len(shapes[0]) != len(shapes[1]) or value.size > 1000:
            return False
        for shape in shapes:
            del shape[axis]
        return shapes[0] == shapes[1]

    parts = [draw.value(fits) for _ in range(draw.integer(1, 3))]
    texts = [part.name for part in parts]
    facts = joined(x.facts, *(part.facts for part in parts))
    if draw.chance(0.4):
        shape = list(x.shape)
        shape[axis] = draw.integer(0, 3)
        scalar, own = draw.scalar(x.dtype)
        texts.insert(draw.integer(0, len(texts)), f"jnp.full({tuple(shape)}, {scalar})")
        facts = joined(facts, own)
    text = f"lax.concatenate([{', '.join([*texts, x.name])}], {axis})"
    return line(text, [x, *parts], facts)


def rearrange(draw: Draw) -> Line:
    x = draw.value(ranked)
    axis = draw.integer(-len(x.shape), len(x.shape) - 1)
    texts = [f"jnp.roll({x.name}, {draw.integer(-9, 9)}, {axis})"]
    texts.append(f"jnp.expand_dims({x.name}, {axis})")
    if x.size < 500:
        texts.append(f"jnp.repeat({x.name}, {draw.integer(1, 3)}, {axis})")
        texts.append(f"jnp.tile({x.name}, {draw.integer(1, 3)})")
    if len(x.shape) > 1:
        offset = draw.integer(-3, 3)
        texts.append(f"jnp.{draw.choice(('triu', 'tril'))}({x.name}, {offset})")
        texts.append(f"jnp.moveaxis({x.name}, {axis}, 0)")
    if x.shape[axis] % 2 == 0:
        texts.append(f"jnp.concatenate(jnp.split({x.name}, 2, {axis})[::-1], {axis})")
    return line(draw.choice(texts), [x], joined(x.facts, Facts(0, x.facts.quantum)))


def dynamic_slice(draw: Draw) -> Line:
    x = draw.value(ranked)
    starts = ", ".join(draw.index(dim) for dim in x.shape)
    sizes = [draw.integer(1, dim) for dim in x.shape]
    reads = [value for value in draw.values if value.name in _names(starts)]
    return line(f"lax.dynamic_slice({x.name}, ({starts},), {sizes})", [x, *reads], x.facts)


def dynamic_update(draw: Draw) -> Line:
    x = draw.value(ranked)
    starts = ", ".join(draw.index(dim) for dim in x.shape)
    reads = [value for value in draw.values if value.name in _names(starts)]

    def fits(value: Value) -> bool:
        same_rank = value.dtype == x.dtype and len(value.shape) == len(x.shape)
        return same_rank and all(a <= b for a, b in zip(value.shape, x.shape, strict=True))

    update = draw.value(fits)
    text = f"lax.dynamic_update_slice({x.name}, {update.name}, ({starts},))"
    return line(text, [x, update, *reads], joined(x.facts, update.facts))


def _names(text: str) -> set[str]:
    parts = "".join(char if char.isalnum() or char == "_" else " " for char in text).split()
    return set(parts)


def indices(draw: Draw, limit: int, shape: tuple[int, ...]) -> tuple[str, list[Value]]:
    """Integers about [0, limit) as text: computed ones or a constant."""
    computed = [
        value for value in draw.values if integral(value) and exact(value) and value.shape == shape
    ]
    if computed and draw.chance(0.5):
        value = draw.choice(computed)
        return value.name, [value]
    generator = np.random.default_rng(draw.random.getrandbits(32))
    outside = draw.integer(0, 2) if draw.chance(0.4) else 0
    low = -limit if draw.chance(0.4) else 0
    array = generator.integers(low - outside, limit + outside, shape).astype(np.int32)
    text = literal(array)
    return (f"jnp.asarray({text})" if draw.chance(0.5) else text), []


def take(draw: Draw) -> Line:
    x = draw.value(ranked)
    axis = draw.integer(0, len(x.shape) - 1)
    shape = draw.choice(((), (1,), (3,), (2, 2), (5,)))
    picked, reads = indices(draw, x.shape[axis], shape)
    mode = draw.choice(("clip", "fill", "wrap", "promise_in_bounds", "default"))
    extra = "" if mode == "default" else f", mode='{mode}'"
    if mode == "promise_in_bounds":
        picked, reads = f"jnp.abs({picked}) % {x.shape[axis]}", reads
    text = f"jnp.take({x.name}, {picked}, axis={axis}{extra})"
    return line(text, [x, *reads], replace(x.facts, special=True))


def take_along(draw: Draw) -> Line:
    x = draw.value(ranked)
    axis = draw.integer(0, len(x.shape) - 1)
    shape = list(x.shape)
    shape[axis] = draw.integer(1, 4)
    if np.prod(shape) > 300:
        raise Unsuitable
    picked, reads = indices(draw, x.shape[axis], tuple(shape))
    text = f"jnp.take_along_axis({x.name}, {picked}, axis={axis})"
    return line(text, [x, *reads], replace(x.facts, special=True))


def gather(draw: Draw) -> Line:
    """The general form, with window dimensions of any size and batches."""
    x = draw.value(lambda value: len(value.shape) >= 2 and value.size > 0)
    rank = len(x.shape)
    indexed = sorted(draw.permutation(rank)[: draw.integer(1, rank)])
    collapsed = [axis for axis in indexed if draw.chance(0.5)]
    sizes = [1 if axis in collapsed else draw.integer(1, x.shape[axis]) for axis in range(rank)]
    batch = draw.choice(((2,), (3,), (2, 3)))
    windows = rank - len(collapsed)
    offsets = sorted(draw.permutation(len(batch) + windows)[:windows])
    limit = max(x.shape[axis] for axis in indexed)
    picked, reads = indices(draw, limit, (*batch, len(indexed)))
    order = [indexed[place] for place in draw.permutation(len(indexed))]
    numbers = (
        f"lax.GatherDimensionNumbers(offset_dims={tuple(offsets)}, "
        f"collapsed_slice_dims={tuple(collapsed)}, start_index_map={tuple(order)})"
    )
    mode = draw.choice(("clip", "fill", "clip"))
    text = f"lax.gather({x.name}, {picked}, {numbers}, {tuple(sizes)}, mode='{mode}')"
    return line(text, [x, *reads], replace(x.facts, special=True))


def update(draw: Draw) -> Line:
    """`x.at[…]` with everything it can do."""
    x = draw.value(ranked, wide)
    axis = draw.integer(0, len(x.shape) - 1)
    count = draw.integer(1, 4)
    picked, reads = indices(draw, x.shape[axis], (count,))
    where = ", ".join([*(":" * axis), picked])
    scalar, facts = draw.scalar(x.dtype)
    operation = draw.choice(("set", "add", "add", "min", "max", "mul"))
    mode = draw.choice(("", "", ", mode='drop'", ", mode='clip'"))
    if operation == "set":
        # which of two updates of one element comes last is not said
        picked = literal(np.array(draw.permutation(x.shape[axis])[:count], np.int32))
        where, reads = ", ".join([*(":" * axis), picked]), []
        result = joined(x.facts, facts)
    elif operation in ("min", "max"):
        result = replace(joined(x.facts, facts), any_zero=True)
    elif operation == "add":
        result = summed(joined(x.facts, facts), count + 1, x.dtype)
        if not is_float(x.dtype):
            result = through_float32(result)
    else:
        scalar, facts = "2", Facts(2, 1)
        if not is_float(x.dtype):
            raise Unsuitable
        result = replace(x.facts, bound=x.facts.bound * 2**count)
    text = f"{x.name}.at[{where}].{operation}({scalar}{mode})"
    return line(text, [x, *reads], result)


def scatter(draw: Draw) -> Line:
    """The general form: windows at any place."""
    x = draw.value(lambda value: len(value.shape) in (1, 2, 3) and value.size > 0, wide, numeric)
    rank = len(x.shape)
    indexed = sorted(draw.permutation(rank)[: draw.integer(1, rank)])
    inserted = [axis for axis in indexed if draw.chance(0.5)]
    sizes = [draw.integer(1, x.shape[axis]) for axis in range(rank) if axis not in inserted]
    count = draw.integer(1, 4)
    if count * np.prod(sizes, initial=1) > MAX_ELEMENTS:
        raise Unsuitable
    at = draw.integer(0, len(sizes))
    shape = [*sizes[:at], count, *sizes[at:]]
    windows = tuple(place for place in range(len(shape)) if place != at)
    limit = max(x.shape[axis] for axis in indexed)
    picked, reads = indices(draw, limit, (count, len(indexed)))
    updates, facts = draw.array(tuple(shape), x.dtype)
    name = draw.choice(("scatter_add", "scatter_min", "scatter_max"))
    numbers = (
        f"lax.ScatterDimensionNumbers(update_window_dims={windows}, "
        f"inserted_window_dims={tuple(inserted)}, scatter_dims_to_operand_dims={tuple(indexed)})"
    )
    mode = draw.choice(("drop", "clip"))
    text = f"lax.{name}({x.name}, {picked}, {literal(updates)}, {numbers}, mode='{mode}')"
    result = joined(x.facts, facts)
    if name == "scatter_add":
        result = summed(result, count + 1, x.dtype)
        if not is_float(x.dtype):
            result = through_float32(result)
    return line(text, [x, *reads], replace(result, any_zero=True))


def sort(draw: Draw) -> Line:
    x = draw.value(ranked, exact)
    axis = draw.integer(0, len(x.shape) - 1)
    keys = [x]
    while draw.chance(0.4) and len(keys) < 3:
        keys.append(draw.value(lambda value: value.shape == x.shape and value.facts.exact))
    if len(keys) == 1:
        descending = draw.chance(0.3)
        text = f"jnp.sort({x.name}, axis={axis}, descending={descending})"
        return line(text, keys, x.facts)
    text = f"lax.sort(({', '.join(key.name for key in keys)}), dimension={axis}, "
    text += f"num_keys={draw.integer(1, len(keys))})"
    return line(text, keys, *(key.facts for key in keys))


def order(draw: Draw) -> Line:
    x = draw.value(ranked, exact)
    axis = draw.integer(0, len(x.shape) - 1)
    text = f"jnp.argsort({x.name}, axis={axis}, stable=True, descending={draw.chance(0.3)})"
    return line(text, [x], Facts(x.shape[axis], 1))


def top(draw: Draw) -> Line:
    x = draw.value(ranked, exact, finite, wide)  # where NaN goes depends on its sign
    count = draw.integer(1, x.shape[-1])
    return line(f"lax.top_k({x.name}, {count})", [x], x.facts, Facts(x.shape[-1], 1))


def iota(draw: Draw) -> Line:
    shape = draw.shape(draw.integer(1, 3))
    dtype = jnp.dtype(draw.choice(("int32", "float32", "bfloat16", "uint8", "int8")))
    if max(shape) > 120 or not np.prod(shape):
        raise Unsuitable
    axis = draw.integer(0, len(shape) - 1)
    facts = Facts(float(shape[axis]), 1)
    return line(f"lax.broadcasted_iota('{dtype.name}', {shape}, {axis})", [], facts)


def constant(draw: Draw) -> Line:
    """An array that the program holds."""
    array, facts = draw.array(draw.shape(elements=60), draw.dtype())
    return line(f"jnp.asarray({literal(array)})", [], facts)


KINDS: Mapping[str, Kind] = {
    each.__name__: each
    for each in (
        slices, index, pad, reverse, transpose, reshape, broadcast, concatenate, rearrange,
        dynamic_slice, dynamic_update, take, take_along, gather, update, scatter, sort, order, top,
        iota, constant,
    )
}  # fmt: skip
