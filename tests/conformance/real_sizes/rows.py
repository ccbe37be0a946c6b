"""What is computed of rows: norms, softmax, losses, the choice of a word."""

from __future__ import annotations

from tests.conformance.real_sizes.kind import (
    FLOATS,
    ROWS,
    WIDTHS,
    WORDS,
    YES_OR_NO,
    Array,
    Kind,
    Written,
)

_NORMS = {
    "layer": "y = x.astype('float32')\n"
    "y = (y - y.mean(-1, keepdims=True)) * lax.rsqrt(y.var(-1, keepdims=True) + 1e-5)\n"
    "return (y * scale + shift).astype(x.dtype)",
    "rms": "y = x.astype('float32')\n"
    "y = y * lax.rsqrt(jnp.mean(y * y, -1, keepdims=True) + 1e-5)\n"
    "return (y * scale).astype(x.dtype)",
    "l2": "return x / jnp.linalg.norm(x.astype('float32'), axis=-1, keepdims=True).astype(x.dtype)",
}
_ROWWISE = {
    "softmax": "return jax.nn.softmax(x, -1)",
    "log_softmax": "return jax.nn.log_softmax(x.astype('float32'), -1)",
    "logsumexp": "return jax.nn.logsumexp(x, -1)",
    "sum": "return x.sum(-1)",
    "max": "return x.max(-1)",
    "mean_and_variance": "return x.astype('float32').mean(-1), x.astype('float32').var(-1)",
    "argmax": "return x.argmax(-1)",
    "any_large": "return (x > 3).any(-1)",
    "entropy": "p = jax.nn.log_softmax(x.astype('float32'), -1)\nreturn -(jnp.exp(p) * p).sum(-1)",
}
_COLUMNWISE = ("sum", "max", "min", "mean", "var", "argmax", "prod")
_LOSSES = {
    "gathered": "p = jax.nn.log_softmax(x.astype('float32'), -1)\n"
    "return -jnp.take_along_axis(p, words[:, None], -1).mean()",
    "one_hot": "p = jax.nn.log_softmax(x.astype('float32'), -1)\n"
    "return -(jax.nn.one_hot(words, x.shape[-1]) * p).sum(-1).mean()",
    "logsumexp": "x = x.astype('float32')\n"
    "right = jnp.take_along_axis(x, words[:, None], -1)[:, 0]\n"
    "z = jax.nn.logsumexp(x, -1)\nreturn (z - right + 1e-4 * z * z).mean()",
}


def norm(rows: int, width: int, sort: str, gradient: bool, dtype: str) -> Written:
    arrays = {"x": Array((rows, width), dtype)}
    weights = {"layer": ("scale", "shift"), "rms": ("scale",), "l2": ()}[sort]
    arrays |= {name: Array((width,), "float32") for name in weights}
    wrt = ("x", *weights) if gradient else ()
    return Written(arguments=arrays, body=_NORMS[sort], wrt=wrt)


def rowwise(rows: int, width: int, what: str, dtype: str) -> Written:
    return Written(arguments={"x": Array((rows, width), dtype)}, body=_ROWWISE[what])


def columnwise(rows: int, width: int, what: str, dtype: str) -> Written:
    body = f"return jnp.{what}(x, axis=0)"
    return Written(arguments={"x": Array((rows, width), dtype)}, body=body)


def loss(rows: int, words: int, form: str, gradient: bool, dtype: str) -> Written:
    arrays = {"x": Array((rows, words), dtype), "words": Array((rows,), "int32")}
    return Written(arguments=arrays, body=_LOSSES[form], wrt=("x",) if gradient else ())


def projected_loss(rows: int, words: int, width: int, gradient: bool, dtype: str) -> Written:
    """The end of a language model: the head and its loss."""
    arrays = {
        "h": Array((rows, width), dtype),
        "head": Array((width, words), dtype),
        "words": Array((rows,), "int32"),
    }
    body = "x = jnp.dot(h, head, preferred_element_type='float32')\n" + _LOSSES["gathered"]
    return Written(arguments=arrays, body=body, wrt=("h", "head") if gradient else ())


def drawn_word(rows: int, words: int, how: str, dtype: str) -> Written:
    """The next word, as servers draw it."""
    forms = {
        "greedy": "return x.argmax(-1)",
        "top_k": "best, at = lax.top_k(x, 50)\n"
        "chosen = jax.random.categorical(jax.random.wrap_key_data(key), best)\n"
        "return jnp.take_along_axis(at, chosen[:, None], -1)",
        "categorical": "return jax.random.categorical(jax.random.wrap_key_data(key), x)",
        "top_p": "ordered = jnp.sort(x.astype('float32'), -1)[:, ::-1]\n"
        "held = jnp.cumsum(jax.nn.softmax(ordered, -1), -1) < 0.9\n"
        "least = jnp.take_along_axis(ordered, held.sum(-1, keepdims=True), -1)\n"
        "x = jnp.where(x >= least, x.astype('float32'), -1e30)\n"
        "return jax.random.categorical(jax.random.wrap_key_data(key), x)",
    }
    arrays = {"x": Array((rows, words), dtype)}
    if how != "greedy":
        arrays["key"] = Array((2,), "uint32")
    return Written(arguments=arrays, body=forms[how])


_SERVED = (1, 2, 3, 7, 8, 16, 33, 64, 100, 128, 256)

KINDS = {
    "norm": Kind(
        norm,
        {"rows": ROWS, "width": WIDTHS, "sort": tuple(_NORMS), "gradient": YES_OR_NO}
        | {"dtype": FLOATS},
        rows="rows",
    ),
    "rowwise": Kind(
        rowwise,
        {"rows": ROWS, "width": (*WIDTHS, 262_144), "what": tuple(_ROWWISE), "dtype": FLOATS},
        rows="rows",
    ),
    "columnwise": Kind(
        columnwise, {"rows": ROWS, "width": WIDTHS, "what": _COLUMNWISE, "dtype": FLOATS}, "rows"
    ),
    "loss": Kind(
        loss,
        {"rows": ROWS, "words": WORDS, "form": tuple(_LOSSES), "gradient": YES_OR_NO}
        | {"dtype": FLOATS},
        rows="rows",
    ),
    "projected_loss": Kind(
        projected_loss,
        {"rows": ROWS, "words": WORDS, "width": (64, 768, 2048, 4096), "gradient": YES_OR_NO}
        | {"dtype": FLOATS},
        rows="rows",
    ),
    "drawn_word": Kind(
        drawn_word,
        {"rows": _SERVED, "words": WORDS[2:], "dtype": FLOATS}
        | {"how": ("greedy", "top_k", "categorical", "top_p")},
        rows="rows",
    ),
}
