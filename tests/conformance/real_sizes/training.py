"""Experts in four styles, optimizers, and norms of trees of gradients."""

from __future__ import annotations

from tests.conformance.real_sizes.kind import FLOATS, YES_OR_NO, Array, Kind, Written, need

_ROUTED = (
    "scores = jax.nn.softmax((x @ router).astype('float32'), -1)\n"
    "share, chosen = lax.top_k(scores, {each})\n"
    "share = (share / share.sum(-1, keepdims=True)).astype(x.dtype)\n"
)
_EXPERTS = {
    "all": "weight = (jax.nn.one_hot(chosen, {experts}, dtype=x.dtype) * share[..., None]).sum(1)\n"
    "h = jax.nn.silu(jnp.einsum('td,edf->etf', x, up))\n"
    "y = jnp.einsum('etf,efd->etd', h, down)\n"
    "return jnp.einsum('etd,te->td', y, weight)",
    "capacity": "hot = jax.nn.one_hot(chosen, {experts}, dtype='int32')\n"
    "place = jnp.cumsum(hot.reshape(-1, {experts}), 0).reshape(hot.shape) * hot - 1\n"
    "slot = jax.nn.one_hot(place, {capacity}, dtype=x.dtype)\n"
    "sent = (slot * hot[..., None].astype(x.dtype)).sum(1)\n"
    "back = (slot * (hot * share[..., None])[..., None].astype(x.dtype)).sum(1)\n"
    "given = jnp.einsum('td,tec->ecd', x, sent)\n"
    "y = jnp.einsum('ecf,efd->ecd', jax.nn.silu(jnp.einsum('ecd,edf->ecf', given, up)), down)\n"
    "return jnp.einsum('ecd,tec->td', y, back)",
    "ragged": "order = jnp.argsort(chosen.reshape(-1))\n"
    "sizes = jnp.bincount(chosen.reshape(-1), length={experts})\n"
    "given = x[order // {each}]\n"
    "h = jax.nn.silu(lax.ragged_dot(given, up, sizes))\n"
    "y = lax.ragged_dot(h, down, sizes) * share.reshape(-1)[order][:, None]\n"
    "return jnp.zeros_like(x).at[order // {each}].add(y)",
    "gathered": "h = jax.nn.silu(jnp.einsum('td,tkdf->tkf', x, up[chosen]))\n"
    "y = jnp.einsum('tkf,tkfd->tkd', h, down[chosen])\n"
    "return (y * share[..., None]).sum(1)",
}


def experts(
    rows: int, width: int, hidden: int, experts: int, each: int, style: str, gradient: bool,
    dtype: str,
) -> Written:  # fmt: skip
    """Layers of which every row takes a few; in one style, what it takes is gathered."""
    capacity = max(4, rows * each * 5 // (experts * 4))
    need(each <= experts)
    need(style != "gathered" or rows * each * width * hidden <= 1 << 31)
    need(style != "capacity" or rows * each * experts * capacity <= 1 << 30)
    arrays = {
        "x": Array((rows, width), dtype),
        "router": Array((width, experts), dtype),
        "up": Array((experts, width, hidden), dtype),
        "down": Array((experts, hidden, width), dtype),
    }
    body = (_ROUTED + _EXPERTS[style]).format(each=each, experts=experts, capacity=capacity)
    taken = min(rows * each, experts) if style == "gathered" else experts
    weights = 2 * arrays["up"].nbytes * taken // experts
    few = style in ("gathered", "ragged") and not gradient
    return Written(
        arguments=arrays,
        body=body,
        wrt=("x", "up", "down") if gradient else (),
        least_bytes=2 * arrays["x"].nbytes + (weights if style == "gathered" else 0)
        if few
        else None,
    )


_OPTIMIZERS = {
    "sgd": ((), "return (p - 0.1 * g).astype(p.dtype)"),
    "momentum": (("m",), "m = 0.9 * m + g\nreturn (p - 0.1 * m).astype(p.dtype), m"),
    "adam": (
        ("m", "v"),
        "g = g.astype('float32')\nm, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g\n"
        "step = m / 0.9 / (jnp.sqrt(v / 0.999) + 1e-8) + 0.01 * p\n"
        "return (p - 1e-3 * step).astype(p.dtype), m, v",
    ),
    "lion": (
        ("m",),
        "step = jnp.sign(0.9 * m + 0.1 * g)\n"
        "return (p - 1e-4 * (step + 0.1 * p)).astype(p.dtype), 0.99 * m + 0.01 * g",
    ),
    "adafactor": (
        ("rows", "columns"),
        "g = g.astype('float32')\nsquared = g * g + 1e-30\n"
        "rows = 0.99 * rows + 0.01 * squared.mean(1)\n"
        "columns = 0.99 * columns + 0.01 * squared.mean(0)\n"
        "scale = lax.rsqrt(rows / rows.mean())[:, None] * lax.rsqrt(columns)\n"
        "return (p - 1e-2 * g * scale).astype(p.dtype), rows, columns",
    ),
    "muon": (
        (),
        "x = g.astype('bfloat16')\nx = x / (jnp.linalg.norm(x) + 1e-7)\n"
        "for _ in range(5):\n"
        "    a = x @ x.T\n"
        "    x = 3.4445 * x + (-4.775 * a + 2.0315 * a @ a) @ x\n"
        "return (p - 0.02 * x).astype(p.dtype)",
    ),
}


def optimizer(
    rows: int, width: int, form: str, clipped: bool, donated: bool, dtype: str
) -> Written:
    """The update of one weight, with a limit to the norm of its gradient."""
    need(form != "muon" or rows * width <= 1 << 24)
    states, body = _OPTIMIZERS[form]
    shapes = {"rows": (rows,), "columns": (width,)}
    arrays = {"p": Array((rows, width), dtype), "g": Array((rows, width), dtype)}
    arrays |= {name: Array(shapes.get(name, (rows, width)), "float32") for name in states}
    if clipped:
        norm = "jnp.sqrt((g.astype('float32') ** 2).sum())"
        body = f"g = g * jnp.minimum(1, 1 / {norm}).astype(g.dtype)\n" + body
    return Written(arguments=arrays, body=body, donated=("p", *states) if donated else ())


def norm_of_gradients(layers: int, width: int, hidden: int, dtype: str) -> Written:
    shapes = {"a": (layers, width, hidden), "b": (layers, hidden, width), "c": (layers, width)}
    arrays = {name: Array(shape, dtype) for name, shape in shapes.items()}
    body = "return jnp.sqrt(sum((x.astype('float32') ** 2).sum() for x in (a, b, c)))"
    return Written(arguments=arrays, body=body)


KINDS = {
    "experts": Kind(
        experts,
        {"rows": (1, 8, 64, 128, 1000, 4096), "width": (64, 512, 1024, 2048)}
        | {"hidden": (64, 512, 1408, 4096), "experts": (2, 8, 16, 64, 128), "each": (1, 2, 4, 8)}
        | {"style": tuple(_EXPERTS), "gradient": (False, False, True), "dtype": FLOATS},
        rows="rows",
    ),
    "optimizer": Kind(
        optimizer,
        {"rows": (1, 64, 768, 4096, 32_000), "width": (64, 768, 1000, 4096, 11_008)}
        | {"form": tuple(_OPTIMIZERS), "clipped": YES_OR_NO, "donated": YES_OR_NO}
        | {"dtype": FLOATS},
        rows="rows",
    ),
    "norm_of_gradients": Kind(
        norm_of_gradients,
        {"layers": (1, 4, 32), "width": (64, 768, 2048), "hidden": (64, 3072, 8192)}
        | {"dtype": FLOATS},
        rows="layers",
    ),
}
