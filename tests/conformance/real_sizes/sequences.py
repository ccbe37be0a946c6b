"""Recurrences: LSTM and GRU, states that are scanned associatively, layers in a loop."""

from __future__ import annotations

from tests.conformance.real_sizes.kind import FLOATS, YES_OR_NO, Array, Kind, Written, need

_STEPS = (4, 16, 100, 500, 1000)
_BATCHES = (1, 3, 8, 32, 64, 128)
_UNITS = (32, 100, 128, 256, 512, 1024)
_CELLS = {
    "lstm": (
        4,
        "def cell(state, x):\n"
        "    c, h = state\n"
        "    i, f, g, o = jnp.split(x @ w + h @ u + shift, 4, -1)\n"
        "    c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)\n"
        "    h = jax.nn.sigmoid(o) * jnp.tanh(c)\n"
        "    return (c, h), h\n",
        "(start, start)",
    ),
    "gru": (
        3,
        "def cell(h, x):\n"
        "    a, b = x @ w + shift, h @ u\n"
        "    r, z, n = jnp.split(a, 3, -1)\n"
        "    s, y, m = jnp.split(b, 3, -1)\n"
        "    r, z = jax.nn.sigmoid(r + s), jax.nn.sigmoid(z + y)\n"
        "    h = (1 - z) * jnp.tanh(n + r * m) + z * h\n"
        "    return h, h\n",
        "start",
    ),
    "tanh": (
        1,
        "def cell(h, x):\n    h = jnp.tanh(x @ w + h @ u + shift)\n    return h, h\n",
        "start",
    ),
}


def recurrence(
    batch: int, steps: int, width: int, units: int, cell: str, gradient: bool, dtype: str
) -> Written:
    gates, body, start = _CELLS[cell]
    arrays = {
        "x": Array((steps, batch, width), dtype),
        "w": Array((width, gates * units), dtype),
        "u": Array((units, gates * units), dtype),
        "shift": Array((gates * units,), dtype),
    }
    body += f"start = jnp.zeros(({batch}, {units}), x.dtype)\nreturn lax.scan(cell, {start}, x)[1]"
    return Written(arguments=arrays, body=body, wrt=("x", "w", "u", "shift") if gradient else ())


def linear_recurrence(
    batch: int, steps: int, width: int, form: str, gradient: bool, dtype: str
) -> Written:
    """h = a * h + b along the positions, as models of states do."""
    x = Array((batch, steps, width), dtype)
    forms = {
        "associative": "def both(p, q):\n    return p[0] * q[0], p[1] * q[0] + q[1]\n"
        "return lax.associative_scan(both, (a, b), axis=1)[1]",
        "scan": "def step(h, both):\n    h = both[0] * h + both[1]\n    return h, h\n"
        "a, b = a.swapaxes(0, 1), b.swapaxes(0, 1)\n"
        "return lax.scan(step, jnp.zeros_like(b[0]), (a, b))[1].swapaxes(0, 1)",
    }
    need(form == "associative" or steps <= 1024)
    return Written(arguments={"a": x, "b": x}, body=forms[form], wrt=("a", "b") if gradient else ())


def selective_state(batch: int, steps: int, width: int, states: int, dtype: str) -> Written:
    """The state of Mamba, of which each position makes its own decay and input."""
    arrays = {
        "x": Array((batch, steps, width), dtype),
        "delta": Array((batch, steps, width), dtype),
        "decay": Array((width, states), "float32"),
        "b": Array((batch, steps, states), dtype),
        "c": Array((batch, steps, states), dtype),
    }
    body = (
        "def step(h, each):\n"
        "    x, delta, b, c = each\n"
        "    d = jax.nn.softplus(delta.astype('float32'))\n"
        "    h = h * jnp.exp(d[..., None] * decay) + (d * x)[..., None] * b[:, None]\n"
        "    return h, (h * c[:, None]).sum(-1).astype(x.dtype)\n"
        f"start = jnp.zeros(({batch}, {width}, {states}))\n"
        "each = tuple(v.swapaxes(0, 1) for v in (x, delta, b, c))\n"
        "return lax.scan(step, start, each)[1].swapaxes(0, 1)"
    )
    return Written(arguments=arrays, body=body)


def linear_attention(
    batch: int, steps: int, heads: int, width: int, chunk: int, dtype: str
) -> Written:
    """Chunks of products, and a state from each to the next."""
    need(steps % chunk == 0)
    each = Array((batch, steps, heads, width), dtype)
    shape = f"({batch}, {steps // chunk}, {chunk}, {heads}, {width})"
    body = (
        f"q, k, v = (x.reshape{shape}.swapaxes(0, 1) for x in (q, k, v))\n"
        f"mask = jnp.tril(jnp.ones(({chunk}, {chunk}), bool))\n"
        "def step(state, each):\n"
        "    q, k, v = each\n"
        "    s = jnp.where(mask, jnp.einsum('bqhd,bkhd->bhqk', q, k), 0)\n"
        "    y = jnp.einsum('bhqk,bkhd->bqhd', s, v) + jnp.einsum('bqhd,bhde->bqhe', q, state)\n"
        "    return state + jnp.einsum('bkhd,bkhe->bhde', k, v), y\n"
        f"start = jnp.zeros(({batch}, {heads}, {width}, {width}), q.dtype)\n"
        f"return lax.scan(step, start, (q, k, v))[1].swapaxes(0, 1).reshape({each.shape})"
    )
    return Written(arguments={"q": each, "k": each, "v": each}, body=body, flops_share=0.5)


def layers_in_a_loop(
    layers: int, rows: int, width: int, hidden: int, remat: bool, gradient: bool, dtype: str
) -> Written:
    arrays = {
        "x": Array((rows, width), dtype),
        "up": Array((layers, width, hidden), dtype),
        "down": Array((layers, hidden, width), dtype),
    }
    body = (
        "def layer(x, weights):\n"
        "    up, down = weights\n"
        "    squares = jnp.square(x.astype('float32')).mean(-1, keepdims=True)\n"
        "    y = x * lax.rsqrt(squares + 1e-5)\n"
        "    return x + jax.nn.silu(y.astype(x.dtype) @ up) @ down, None\n"
    )
    body += "layer = jax.checkpoint(layer)\n" if remat else ""
    body += "return lax.scan(layer, x, (up, down))[0]"
    return Written(arguments=arrays, body=body, wrt=("up", "down") if gradient else ())


KINDS = {
    "recurrence": Kind(
        recurrence,
        {"batch": _BATCHES, "steps": _STEPS, "width": _UNITS, "units": _UNITS}
        | {"cell": tuple(_CELLS), "gradient": YES_OR_NO, "dtype": FLOATS},
        rows="batch",
    ),
    "linear_recurrence": Kind(
        linear_recurrence,
        {"batch": (1, 2, 8), "steps": (64, 100, 1024, 4096), "width": (16, 128, 1000, 4096)}
        | {"form": ("associative", "scan"), "gradient": YES_OR_NO, "dtype": FLOATS},
        rows="batch",
    ),
    "selective_state": Kind(
        selective_state,
        {"batch": (1, 2, 8), "steps": (1, 64, 1000), "width": (64, 768, 2048), "states": (8, 16)}
        | {"dtype": FLOATS},
        rows="batch",
    ),
    "linear_attention": Kind(
        linear_attention,
        {"batch": (1, 2, 8), "steps": (256, 1024, 4096), "heads": (1, 4, 16)}
        | {"width": (32, 64, 128, 256), "chunk": (64, 128, 256), "dtype": FLOATS},
        rows="batch",
    ),
    "layers_in_a_loop": Kind(
        layers_in_a_loop,
        {"layers": (2, 12, 32), "rows": (1, 8, 128, 1000, 4096), "width": (64, 768, 2048, 4096)}
        | {"hidden": (64, 3072, 8192), "remat": YES_OR_NO, "gradient": YES_OR_NO, "dtype": FLOATS},
        rows="rows",
    ),
}
