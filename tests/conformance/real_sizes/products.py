"""Matrix products of odd shapes, layers of them, and products of narrow formats."""

from __future__ import annotations

from tests.conformance.real_sizes.kind import BATCHES, FLOATS, YES_OR_NO, Array, Kind, Written

_SIZES = (1, 2, 3, 7, 8, 16, 33, 64, 100, 127, 128, 129, 257, 512, 768, 1000, 1024, 2048, 4096,
          5120, 8192, 11_008, 14_336, 28_672)  # fmt: skip
_SOME = (1, 3, 8, 64, 100, 128, 129, 512, 1000, 2048, 4096)
_FORMS = {
    "plain": ("mk", "kn", "mn"), "right_transposed": ("mk", "nk", "mn"),
    "left_transposed": ("km", "kn", "mn"), "result_transposed": ("mk", "kn", "nm"),
}  # fmt: skip
_BATCHED = ("bmk,bkn->bmn", "bmk,bnk->bmn", "mbk,kbn->mbn", "bmk,kn->bmn", "mbk,nbk->bmn")


def product(m: int, k: int, n: int, form: str, gradient: bool, dtype: str) -> Written:
    left, right, result = _FORMS[form]
    sizes = {"m": m, "k": k, "n": n}
    arrays = {
        "a": Array(tuple(sizes[each] for each in left), dtype),
        "b": Array(tuple(sizes[each] for each in right), dtype),
    }
    body = f"return jnp.einsum('{left},{right}->{result}', a, b)"
    return Written(arguments=arrays, body=body, wrt=("a", "b") if gradient else ())


def batched_product(batch: int, m: int, k: int, n: int, form: str, dtype: str) -> Written:
    left, right = form.split("->")[0].split(",")
    sizes = {"b": batch, "m": m, "k": k, "n": n}
    arrays = {
        "a": Array(tuple(sizes[each] for each in left), dtype),
        "b": Array(tuple(sizes[each] for each in right), dtype),
    }
    return Written(arguments=arrays, body=f"return jnp.einsum('{form}', a, b)")


def gated_layer(
    rows: int, width: int, hidden: int, act: str, gradient: bool, dtype: str
) -> Written:
    arrays = {
        "x": Array((rows, width), dtype),
        "up": Array((width, hidden), dtype),
        "gate": Array((width, hidden), dtype),
        "down": Array((hidden, width), dtype),
    }
    body = f"return (jax.nn.{act}(x @ gate) * (x @ up)) @ down"
    return Written(arguments=arrays, body=body, wrt=tuple(arrays) if gradient else ())


def dense_layer(
    rows: int, width: int, hidden: int, act: str, gradient: bool, dtype: str
) -> Written:
    arrays = {
        "x": Array((rows, width), dtype),
        "w": Array((width, hidden), dtype),
        "shift": Array((hidden,), dtype),
    }
    body = f"return jax.nn.{act}(x @ w + shift)"
    return Written(arguments=arrays, body=body, wrt=tuple(arrays) if gradient else ())


def adapted_layer(
    rows: int, width: int, hidden: int, rank: int, gradient: bool, dtype: str
) -> Written:
    """A weight with an update of low rank beside it."""
    arrays = {
        "x": Array((rows, width), dtype),
        "w": Array((width, hidden), dtype),
        "a": Array((width, rank), dtype),
        "b": Array((rank, hidden), dtype),
    }
    body = "return x @ w + (x @ a) @ b * 2"
    return Written(arguments=arrays, body=body, wrt=("x", "a", "b") if gradient else ())


_WEIGHTS = {
    "int8": "wide = w.astype(x.dtype) * scale",
    "int8_blocks": "wide = (w.reshape(-1, 64, w.shape[1]).astype(x.dtype) * scales[:, None, :])"
    ".reshape(w.shape)",
    "int4": "wide = w.astype('int8').astype(x.dtype) * scale",
    "float8_e4m3fn": "wide = w.astype(x.dtype) * scale",
}


def quantised_weight(rows: int, width: int, hidden: int, form: str, dtype: str) -> Written:
    stored = form.removesuffix("_blocks")
    arrays = {"x": Array((rows, width), dtype), "w": Array((width, hidden), stored)}
    if form.endswith("_blocks"):
        arrays["scales"] = Array((width // 64, hidden), dtype)
    else:
        arrays["scale"] = Array((hidden,), dtype)
    return Written(arguments=arrays, body=f"{_WEIGHTS[form]}\nreturn x @ wide")


_QUANTISED = {
    "int8": "scale = jnp.abs(x).max(-1, keepdims=True).astype('float32') / 127 + 1e-9\n"
    "narrow = jnp.round(x / scale).clip(-127, 127).astype('int8')\n",
    "float8_e4m3fn": "scale = jnp.abs(x).max(-1, keepdims=True).astype('float32') / 240 + 1e-9\n"
    "narrow = (x / scale).clip(-240, 240).astype('float8_e4m3fn')\n",
}


def quantised_rows(
    rows: int, width: int, hidden: int, form: str, product: bool, dtype: str
) -> Written:
    """Rows that are quantised as they come, by themselves or for a product of that format."""
    arrays = {"x": Array((rows, width), dtype)}
    body = _QUANTISED[form]
    if not product:
        return Written(arguments=arrays, body=body + "return narrow, scale")
    arrays["w"] = Array((width, hidden), form)
    wide = "int32" if form == "int8" else "float32"
    body += f"return jnp.dot(narrow, w, preferred_element_type='{wide}') * scale"
    return Written(arguments=arrays, body=body)


_ROWS = (1, 3, 8, 64, 100, 128, 129, 512, 1000, 4096)
_WIDTHS = (64, 768, 1024, 1280, 2048, 4096, 5120)
_HIDDEN = (64, 1000, 3072, 8192, 11_008, 14_336)
_ACTS = ("relu", "silu", "gelu", "tanh", "sigmoid", "softplus", "swish")
_LAYER = {"rows": _ROWS, "width": _WIDTHS, "hidden": _HIDDEN}

KINDS = {
    "product": Kind(
        product,
        {"m": _SIZES, "k": _SIZES, "n": _SIZES, "form": tuple(_FORMS), "gradient": YES_OR_NO}
        | {"dtype": FLOATS},
        rows="m",
    ),
    "batched_product": Kind(
        batched_product,
        {"batch": (*BATCHES, 100, 128, 512), "m": _SOME, "k": _SOME, "n": _SOME}
        | {"form": _BATCHED, "dtype": FLOATS},
        rows="batch",
    ),
    "gated_layer": Kind(
        gated_layer, _LAYER | {"act": _ACTS, "gradient": YES_OR_NO, "dtype": FLOATS}, "rows"
    ),
    "dense_layer": Kind(
        dense_layer, _LAYER | {"act": _ACTS, "gradient": YES_OR_NO, "dtype": FLOATS}, "rows"
    ),
    "adapted_layer": Kind(
        adapted_layer,
        _LAYER | {"rank": (4, 16, 64), "gradient": YES_OR_NO, "dtype": FLOATS},
        rows="rows",
    ),
    "quantised_weight": Kind(
        quantised_weight, _LAYER | {"form": tuple(_WEIGHTS), "dtype": FLOATS}, "rows"
    ),
    "quantised_rows": Kind(
        quantised_rows,
        _LAYER | {"form": tuple(_QUANTISED), "product": YES_OR_NO, "dtype": FLOATS},
        rows="rows",
    ),
}
