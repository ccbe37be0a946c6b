"""Programs that only move data, and those of one pass over it."""

from __future__ import annotations

import itertools

from tests.conformance.real_sizes.kind import FLOATS, Array, Kind, Written, need

_TYPES = (*FLOATS, "int32", "int8", "bool")
_SIZES = (1, 2, 3, 4, 7, 64, 100, 127, 128, 129, 512, 1000, 4096, 32_000)
_MOVED = {
    "flip_first": "return jnp.flip(x, 0)",
    "flip_last": "return jnp.flip(x, -1)",
    "flip_all": "return jnp.flip(x)",
    "roll_first": "return jnp.roll(x, 1, 0)",
    "roll_last": "return jnp.roll(x, 3, -1)",
    "concatenate_first": "return jnp.concatenate([x, x], 0)",
    "concatenate_last": "return jnp.concatenate([x, x], -1)",
    "stack": "return jnp.stack([x, x], 1)",
    "pad": "return jnp.pad(x, ((0, 1), (1, 0), (2, 2)))",
    "pad_inside": "return lax.pad(x, jnp.zeros((), x.dtype), ((0, 0, 1), (0, 0, 0), (0, 0, 1)))",
    "tile": "return jnp.tile(x, (1, 2, 1))",
    "tile_last": "return jnp.tile(x, (1, 1, 3))",
    "repeat_first": "return jnp.repeat(x, 2, 0)",
    "repeat_last": "return jnp.repeat(x, 2, -1)",
    "every_second_row": "return x[::2]",
    "every_second_column": "return x[..., ::2]",
    "backwards_by_two": "return x[::-2]",
    "inner": "return x[:, :, 1:-1]",
    "halves_swapped": "a, b = jnp.split(x, [x.shape[-1] // 2], -1)\n"
    "return jnp.concatenate([b, a], -1)",
    "two_parts": "return x[: x.shape[0] // 2], x[x.shape[0] // 2 :]",
    "broadcast_first": "return jnp.broadcast_to(x[None], (4, *x.shape))",
    "broadcast_last": "return jnp.broadcast_to(x[..., None], (*x.shape, 8))",
    "merged": "return x.reshape(-1)[1:]",
    "rows_of_seven": "return x.reshape(-1)[: x.size // 7 * 7].reshape(7, -1)",
    "triangle": "return jnp.tril(x)",
    "where": "return jnp.where(x > x[:1], x, x[:, :1])",
    "as_float": "return x.astype('float32')[::-1]",
}
_PASSES = {
    "scaled": "return x * 2 + 1",
    "added_row": "return x + x[:1]",
    "added_column": "return x + x[:, :1]",
    "gelu": "return jax.nn.gelu(x)",
    "silu": "return jax.nn.silu(x)",
    "exp_of_difference": "return jnp.exp(x - x.max())",
    "sine": "return jnp.sin(x) * jnp.cos(x)",
    "power": "return jnp.abs(x) ** 1.5",
    "narrowed": "return x.astype('bfloat16'), x.astype('float16')",
    "error_function": "return jax.scipy.special.erf(x)",
    "dropout": "keep = jax.random.bernoulli(jax.random.wrap_key_data(key), 0.9, x.shape)\n"
    "return jnp.where(keep, x / 0.9, 0)",
    "noise": "return x + jax.random.normal(jax.random.wrap_key_data(key), x.shape, x.dtype)",
}


def _cube(a: int, b: int, c: int, dtype: str) -> Array:
    array = Array((a, b, c), dtype)
    need(1 << 10 < array.nbytes < 1 << 30)
    return array


def moved(a: int, b: int, c: int, how: str, dtype: str) -> Written:
    need(not (how == "inner" and c < 3) and not (how == "two_parts" and a < 2))
    need(not (how in ("broadcast_last", "halves_swapped", "every_second_column") and c < 2))
    x = _cube(a, b, c, dtype)
    half = how in ("every_second_row", "every_second_column", "backwards_by_two", "inner")
    half |= how in ("rows_of_seven", "merged")
    doubled = how in ("stack", "concatenate_first", "concatenate_last")
    least = x.nbytes // 4 if half else 3 * x.nbytes if doubled else None
    return Written(arguments={"x": x}, body=_MOVED[how], least_bytes=least)


def transposed(a: int, b: int, c: int, d: int, order: str, dtype: str) -> Written:
    x = Array((a, b, c, d), dtype)
    need(1 << 10 < x.nbytes < 1 << 30)
    axes = tuple("abcd".index(each) for each in order)
    return Written(arguments={"x": x}, body=f"return x.transpose{axes}")


def passed(a: int, b: int, c: int, how: str, dtype: str) -> Written:
    arrays = {"x": _cube(a, b, c, dtype)}
    if how in ("dropout", "noise"):
        arrays["key"] = Array((2,), "uint32")
    return Written(arguments=arrays, body=_PASSES[how])


def patches(batch: int, pixels: int, channels: int, size: int, dtype: str) -> Written:
    """An image cut into squares, as vision transformers begin."""
    need(pixels % size == 0)
    many = pixels // size
    x = Array((batch, pixels, pixels, channels), dtype)
    body = (
        f"x = x.reshape({batch}, {many}, {size}, {many}, {size}, {channels})\n"
        f"return x.transpose(0, 1, 3, 2, 4, 5).reshape({batch}, {many * many}, -1)"
    )
    return Written(arguments={"x": x}, body=body)


def rotated(batch: int, positions: int, heads: int, width: int, form: str, dtype: str) -> Written:
    """Rotary positions, in halves or interleaved."""
    x = Array((batch, positions, heads, width), dtype)
    angle = Array((positions, width // 2), "float32")
    halves = {
        "halves": "a, b = jnp.split(x.astype('float32'), 2, -1)\n",
        "interleaved": "a, b = x[..., ::2].astype('float32'), x[..., 1::2].astype('float32')\n",
    }
    joined = {
        "halves": "return jnp.concatenate([y, z], -1).astype(x.dtype)",
        "interleaved": "return jnp.stack([y, z], -1).reshape(x.shape).astype(x.dtype)",
    }
    body = halves[form] + (
        "c, s = jnp.cos(angle)[:, None], jnp.sin(angle)[:, None]\n"
        "y, z = a * c - b * s, b * c + a * s\n"
    )
    return Written(arguments={"x": x, "angle": angle}, body=body + joined[form])


_CUBE = {"a": _SIZES, "b": _SIZES, "c": _SIZES}
_ORDERS = tuple("".join(each) for each in itertools.permutations("abcd"))[1:]

KINDS = {
    "moved": Kind(moved, _CUBE | {"how": tuple(_MOVED), "dtype": _TYPES}, rows="a"),
    "transposed": Kind(
        transposed,
        {"a": (1, 2, 8, 128), "b": _SIZES, "c": (1, 4, 32, 128), "d": _SIZES}
        | {"order": _ORDERS, "dtype": _TYPES},
        rows="b",
    ),
    "passed": Kind(passed, _CUBE | {"how": tuple(_PASSES), "dtype": FLOATS}, rows="a"),
    "patches": Kind(
        patches,
        {"batch": (1, 2, 8, 64), "pixels": (32, 224, 336, 384, 512, 1024)}
        | {"channels": (3, 4, 16), "size": (2, 4, 8, 14, 16, 32), "dtype": FLOATS},
        rows="batch",
    ),
    "rotated": Kind(
        rotated,
        {"batch": (1, 2, 8), "positions": (1, 128, 1000, 4096, 32_768), "heads": (1, 8, 20, 32)}
        | {"width": (32, 64, 80, 128, 256), "form": ("halves", "interleaved"), "dtype": FLOATS},
        rows="positions",
    ),
}
