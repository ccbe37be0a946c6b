"""Attention as people write it, and as libraries do."""

from __future__ import annotations

from tests.conformance.real_sizes.kind import (
    FLOATS,
    POSITIONS,
    YES_OR_NO,
    Array,
    Kind,
    Written,
    need,
    visible,
)

_WINDOW = 1024
_HEADS = (1, 2, 4, 8, 10, 12, 16, 20, 32)
_WIDTHS = (32, 40, 64, 72, 80, 96, 128, 160, 192, 256, 512)
_MASKS = ("none", "causal", "window", "bias", "padding")
_MASKED = {
    "none": "",
    "bias": "s = s + bias\n",
    "padding": "s = jnp.where(padding[:, None, None, :], s, -1e30)\n",
    "causal": "i, j = jnp.arange(s.shape[-2])[:, None], jnp.arange(s.shape[-1])\n"
    "s = jnp.where(i >= j, s, -1e30)\n",
    "window": "i, j = jnp.arange(s.shape[-2])[:, None], jnp.arange(s.shape[-1])\n"
    f"s = jnp.where((i >= j) & (i - j < {_WINDOW}), s, -1e30)\n",
}
_LIBRARY = {
    "none": "",
    "bias": ", bias=bias",
    "padding": ", mask=padding[:, None, None, :]",
    "causal": ", is_causal=True",
    "window": f", is_causal=True, local_window_size=({_WINDOW - 1}, 0)",
}


def _extra(mask: str, batch: int, heads: int, positions: int, dtype: str) -> dict[str, Array]:
    if mask == "bias":
        return {"bias": Array((1, heads, positions, positions), dtype)}
    if mask == "padding":
        return {"padding": Array((batch, positions), "bool")}
    return {}


def attention(
    batch: int, positions: int, heads: int, groups: int, width: int, mask: str, cap: bool,
    wide_scores: bool, gradient: bool, dtype: str,
) -> Written:  # fmt: skip
    """Scores, a mask, a softmax and values, written out; `groups` queries share a key."""
    need(heads % groups == 0)
    shape = (batch, positions, heads // groups, width)
    each = "hg" if groups > 1 else "h"
    queries = (*shape[:2], *((heads // groups, groups) if groups > 1 else (heads,)), width)
    scores = "float32" if wide_scores else dtype
    body = (
        f"s = jnp.einsum('bq{each}d,bkhd->b{each}qk', q, k, preferred_element_type='{scores}')\n"
        f"s = s * {width}**-0.5\n"
    )
    if cap:
        body += "s = 50 * jnp.tanh(s / 50)\n"
    grouped = _MASKED[mask]
    if groups > 1:
        grouped = grouped.replace("+ bias", "+ bias.reshape(1, *s.shape[1:])").replace(
            "[:, None, None, :]", "[:, None, None, None, :]"
        )
    body += grouped
    body += f"p = jax.nn.softmax(s, -1).astype('{dtype}')\n"
    body += f"return jnp.einsum('b{each}qk,bkhd->bq{each}d', p, v)"
    arrays = {"q": Array(queries, dtype), "k": Array(shape, dtype), "v": Array(shape, dtype)}
    return Written(
        arguments=arrays | _extra(mask, batch, heads, positions, dtype),
        body=body,
        wrt=("q", "k", "v") if gradient else (),
        flops_share=visible(positions, positions, mask, _WINDOW),
    )


def library_attention(
    batch: int, positions: int, heads: int, groups: int, width: int, mask: str, gradient: bool,
    dtype: str,
) -> Written:  # fmt: skip
    """The attention of jax.nn."""
    need(heads % groups == 0)
    shape = (batch, positions, heads // groups, width)
    arrays = {
        "q": Array((batch, positions, heads, width), dtype),
        "k": Array(shape, dtype),
        "v": Array(shape, dtype),
    }
    extra = _extra(mask, batch, heads, positions, dtype)
    return Written(
        arguments=arrays | extra,
        body=f"return jax.nn.dot_product_attention(q, k, v{_LIBRARY[mask]})",
        wrt=("q", "k", "v") if gradient else (),
        flops_share=visible(positions, positions, mask, _WINDOW),
    )


def decoding(
    batch: int, places: int, heads: int, groups: int, width: int, queries: int, update: bool,
    dtype: str,
) -> Written:  # fmt: skip
    """A few new positions against a cache of which `length` places are filled."""
    need(heads % groups == 0)
    kv = heads // groups
    cache = Array((batch, places, kv, width), dtype)
    arrays = {
        "q": Array((batch, queries, kv, groups, width), dtype),
        "keys": cache,
        "values": cache,
        "length": Array((), "int32"),
    }
    body = ""
    if update:
        new = Array((batch, queries, kv, width), dtype)
        arrays |= {"k": new, "v": new}
        body = (
            "keys = lax.dynamic_update_slice_in_dim(keys, k, length, 1)\n"
            "values = lax.dynamic_update_slice_in_dim(values, v, length, 1)\n"
        )
    body += (
        "s = jnp.einsum('bqhgd,bkhd->bhgqk', q, keys, preferred_element_type='float32')\n"
        f"held = jnp.arange({places}) <= length + jnp.arange({queries})[:, None]\n"
        f"p = jax.nn.softmax(jnp.where(held, s * {width}**-0.5, -1e30), -1).astype('{dtype}')\n"
        "out = jnp.einsum('bhgqk,bkhd->bqhgd', p, values)\n"
    )
    body += "return out, keys, values" if update else "return out"
    return Written(
        arguments=arrays,
        body=body,
        donated=("keys", "values") if update else (),
        least_bytes=2 * cache.nbytes + 2 * arrays["q"].nbytes,
    )


_COMMON = {
    "batch": (1, 2, 4, 8), "positions": POSITIONS, "heads": _HEADS, "groups": (1, 2, 4, 8),
    "width": _WIDTHS, "mask": _MASKS,
}  # fmt: skip

KINDS = {
    "attention": Kind(
        attention,
        _COMMON
        | {"cap": (False, False, True), "wide_scores": YES_OR_NO, "gradient": YES_OR_NO}
        | {"dtype": FLOATS},
        rows="positions",
    ),
    "library_attention": Kind(
        library_attention, _COMMON | {"gradient": YES_OR_NO, "dtype": FLOATS}, rows="positions"
    ),
    "decoding": Kind(
        decoding,
        {"batch": (1, 3, 8, 32), "places": POSITIONS, "heads": _HEADS, "groups": (1, 2, 4, 8)}
        | {"width": _WIDTHS, "queries": (1, 1, 4, 16), "update": YES_OR_NO, "dtype": FLOATS},
        rows="batch",
    ),
}
