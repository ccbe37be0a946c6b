"""The table of docs/nki.md that has the estimated times of the models' kernels, and those of the
compiler's own code for the same functions, on a logical core of one physical core and of two.

JAX_PLATFORMS=neuron python -m tests.documentation.kernel_times
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

import neuronjax
from models.layers.attention import AttentionCall, dot_product_attention
from models.layers.masks import Visibility
from models.layers.norms import RMSNorm, rms_normalised
from models.layers.rotary import Turn, apply_rotary
from neuronjax import nki
from tests.documentation.tables import DOCS, markdown, renewed

nki.install()

from models.kernels.adamw import adamw  # noqa: E402
from models.kernels.blockwise_moe import mixture  # noqa: E402
from models.kernels.cores import on_cores, tiles_of  # noqa: E402
from models.kernels.cross_entropy import cross_entropy  # noqa: E402
from models.kernels.flash_attention import flash_attention  # noqa: E402
from models.kernels.fp8 import quantised  # noqa: E402
from models.kernels.rms_norm import rms_norm  # noqa: E402
from models.kernels.rms_norm_qkv import rms_norm_qkv  # noqa: E402
from models.kernels.rope import rope  # noqa: E402
from models.kernels.router import top_experts  # noqa: E402
from models.kernels.selective_scan import selective_scan  # noqa: E402
from models.kernels.swiglu import swiglu  # noqa: E402

PAGE, TABLE = DOCS / "nki.md", "kernel times"
ROWS, WIDTH = 2048, 2048
LENGTH, HEADS, KV_HEADS, HEAD_DIM = 1024, 8, 2, 128
WORDS = 16384
EXPERTS, CHOSEN = 8, 2
BETA1, BETA2, EPS, DECAY = 0.9, 0.999, 1e-8, 0.1


def plain_rms_norm(x: jax.Array, scale: jax.Array) -> jax.Array:
    norm = RMSNorm(WIDTH, eps=1e-6, param_dtype=scale.dtype)
    norm.scale = nnx.data(nnx.Param(scale))
    return norm(x)


def plain_attention(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
    return dot_product_attention(query, key, value, AttentionCall(Visibility()))


def cross_entropy_nats(logits: jax.Array, targets: jax.Array) -> jax.Array:
    own = jnp.take_along_axis(logits, targets[:, None], axis=1)[:, 0]
    return jax.nn.logsumexp(logits, axis=1) - own


def with_gradient(function: Callable[..., jax.Array]) -> Callable[..., Any]:
    """Losses of logits and targets, and the gradient of the logits."""

    def pulled(logits: jax.Array, targets: jax.Array, of_losses: jax.Array) -> Any:
        losses, pull = jax.vjp(lambda logits: function(logits, targets), logits)
        return losses, pull(of_losses)

    return pulled


def gradients(function: Callable[..., jax.Array]) -> Callable[..., Any]:
    """For queries, keys and values; the last argument is the gradient of the result."""

    def pulled(*arguments: jax.Array) -> Any:
        return jax.vjp(function, *arguments[:-1])[1](arguments[-1])

    return pulled


def plain_rope(x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
    return apply_rotary(x, Turn(cos, sin))


def of_turned(function: Callable[..., jax.Array]) -> Callable[..., Any]:
    """The gradient of x, from that of the turned x, which is the first argument."""

    def pulled(gradient: jax.Array, cos: jax.Array, sin: jax.Array) -> Any:
        zeros = jnp.zeros_like(gradient)
        return jax.vjp(lambda x: function(x, cos, sin), zeros)[1](gradient)

    return pulled


def plain_adamw(*arrays: jax.Array) -> Any:
    weights, gradients, means, squares, scalars = arrays
    means = BETA1 * means + (1 - BETA1) * gradients
    squares = BETA2 * squares + (1 - BETA2) * gradients**2
    rate, of_mean, of_square = scalars[0]
    step = means * of_mean / (jnp.sqrt(squares * of_square) + EPS) + DECAY * weights
    return weights - rate * step, means, squares


def plain_qkv(x: jax.Array, scale: jax.Array, weights: jax.Array) -> jax.Array:
    return rms_normalised(x, scale[0].astype(jnp.float32), EPS) @ weights


def plain_swiglu(x: jax.Array, gate: jax.Array, up: jax.Array, down: jax.Array) -> jax.Array:
    return (jax.nn.silu(x @ gate) * (x @ up)) @ down


def plain_router(x: jax.Array, weights: jax.Array) -> Any:
    scores = jnp.matmul(x, weights, preferred_element_type=jnp.float32)
    largest, experts = jax.lax.top_k(scores, CHOSEN)
    return experts, jax.nn.softmax(largest)


def plain_quantised(x: jax.Array) -> Any:
    x = x.astype(jnp.float32)
    scales = jnp.maximum(jnp.max(jnp.abs(x), axis=1, keepdims=True), 1e-10) / 240
    return (x / scales).astype(jnp.float8_e4m3), scales


def plain_scan(*arrays: jax.Array) -> jax.Array:
    """As in `selective_scan`, with all states of all positions in memory."""
    x, step, decay, write, read, skip = arrays
    kept = jnp.exp(step[:, None] * decay[..., None])  # [D, S, T]
    written = (step * x)[:, None] * write

    def after(first: Any, second: Any) -> Any:
        return first[0] * second[0], second[0] * first[1] + second[1]

    _, history = jax.lax.associative_scan(after, (kept, written), axis=2)
    return jnp.sum(history * read, axis=1) + skip * x


def plain_mixture(
    x: jax.Array,
    experts: jax.Array,
    weights: jax.Array,
    gate: jax.Array,
    up: jax.Array,
    down: jax.Array,
) -> jax.Array:
    flat = experts.reshape(-1)
    order = jnp.argsort(flat)
    sizes = jnp.bincount(flat, length=len(gate)).astype(jnp.int32)
    rows = x[order // experts.shape[1]]
    hidden = jax.nn.silu(jax.lax.ragged_dot(rows, gate, sizes))
    y = jax.lax.ragged_dot(hidden * jax.lax.ragged_dot(rows, up, sizes), down, sizes)
    parts = jnp.zeros_like(y).at[order].set(y).reshape(*experts.shape, -1)
    return jnp.sum(parts * weights[..., None].astype(x.dtype), axis=1)


def array(*shape: int, dtype: Any = jnp.bfloat16) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def cases() -> Iterator[tuple[str, Callable[..., Any], Callable[..., Any], Sequence[Any]]]:
    """What is computed, the function with the kernel, the one without, and its arguments."""
    yield (
        f"`rms_norm` of [{ROWS}, {WIDTH}]",
        lambda x, scale: rms_norm(x, scale, 1e-6),
        plain_rms_norm,
        (array(ROWS, WIDTH), array(WIDTH)),
    )
    many, few = (array(1, LENGTH, heads, HEAD_DIM) for heads in (HEADS, KV_HEADS))
    size = f"{LENGTH} positions, {HEADS} query heads and {KV_HEADS} key-value heads of {HEAD_DIM}"
    yield f"`flash_attention` of {size}", flash_attention, plain_attention, (many, few, few)
    functions = gradients(flash_attention), gradients(plain_attention)
    yield "the same and its gradients", *functions, (many, few, few, many)
    yield from small_cases()


def small_cases() -> Iterator[tuple[str, Callable[..., Any], Callable[..., Any], Sequence[Any]]]:
    """All but attention and norms."""

    def exact(*shape: int) -> jax.ShapeDtypeStruct:
        return array(*shape, dtype=jnp.float32)

    x = array(LENGTH, WIDTH)
    heads = array(1, LENGTH, HEADS, HEAD_DIM)
    angles = exact(LENGTH, HEAD_DIM // 2), exact(LENGTH, HEAD_DIM // 2)
    yield (
        f"`rope` of {LENGTH} positions and {HEADS} heads of {HEAD_DIM}",
        jax.jit(rope),
        plain_rope,
        (heads, *angles),
    )
    yield (
        "its gradient",
        of_turned(rope),
        of_turned(plain_rope),
        (heads, *angles),
    )
    logits, targets = exact(LENGTH, WORDS), array(LENGTH, dtype=jnp.int32)
    yield (
        f"`cross_entropy` of [{LENGTH}, {WORDS}] in FP32",
        cross_entropy,
        cross_entropy_nats,
        (logits, targets),
    )
    yield (
        "the same and its gradient",
        with_gradient(cross_entropy),
        with_gradient(cross_entropy_nats),
        (logits, targets, exact(LENGTH)),
    )
    yield (
        f"`adamw` of [{ROWS}, {WIDTH}] in FP32",
        lambda *arrays: on_cores(adamw, tiles_of(ROWS))(*arrays, BETA1, BETA2, EPS, DECAY),
        plain_adamw,
        (*(exact(ROWS, WIDTH) for _ in range(4)), exact(1, 3)),
    )
    yield (
        f"`rms_norm_qkv` of [{LENGTH}, {WIDTH}] to {WIDTH + WIDTH // 2}",
        lambda x, *others: on_cores(rms_norm_qkv, tiles_of(len(x)))(x, *others, EPS),
        plain_qkv,
        (x, array(1, WIDTH), array(WIDTH, WIDTH + WIDTH // 2)),
    )
    hidden = 2 * WIDTH
    weights = array(WIDTH, hidden), array(WIDTH, hidden), array(hidden, WIDTH)
    yield (
        f"`swiglu` of [{LENGTH}, {WIDTH}] by {hidden}",
        jax.jit(swiglu),
        plain_swiglu,
        (x, *weights),
    )
    yield (
        f"`top_experts` of [{LENGTH}, {WIDTH}], {CHOSEN} of {EXPERTS}",
        lambda x, weights: on_cores(top_experts, tiles_of(LENGTH))(x, weights, CHOSEN),
        plain_router,
        (x, array(WIDTH, EXPERTS)),
    )
    yield f"`quantised` of [{LENGTH}, {WIDTH}] to FP8", jax.jit(quantised), plain_quantised, (x,)
    channels, states = exact(WIDTH // 4, LENGTH), exact(16, LENGTH)
    yield (
        f"`selective_scan` of {WIDTH // 4} channels of 16 states, {LENGTH} positions, in FP32",
        jax.jit(selective_scan),
        plain_scan,
        (channels, channels, exact(WIDTH // 4, 16), states, states, exact(WIDTH // 4, 1)),
    )
    width = WIDTH // 4
    yield (
        f"`mixture` of [{LENGTH}, {width}], {CHOSEN} of {EXPERTS} experts of {width}",
        mixture,
        plain_mixture,
        (
            array(LENGTH, width),
            array(LENGTH, CHOSEN, dtype=jnp.int32),
            exact(LENGTH, CHOSEN),
            *(array(EXPERTS, width, width) for _ in range(3)),
        ),
    )


Times = list[tuple[str, float, float]]
"""What is computed, and how many µs the kernel takes, and the compiler's own code."""


def times(lnc: int) -> Times:
    """On logical cores of so many physical cores, which this process has from now on."""
    os.environ["NEURON_LOGICAL_NC_CONFIG"] = str(lnc)  # the imports above have set another
    return [
        (what, *(neuronjax.estimate(f, *arguments, lnc=lnc).step_ns / 1e3 for f in functions))
        for what, *functions, arguments in cases()
    ]


def times_elsewhere(lnc: int) -> Times:
    """The same, in a process for such cores: kernels ask the devices how many they have."""
    command = [sys.executable, "-m", "tests.documentation.kernel_times", str(lnc)]
    output = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    rows: Times = json.loads(output.splitlines()[-1])
    return rows


def main() -> None:
    if len(sys.argv) > 1:
        print(json.dumps(times(int(sys.argv[1]))))
        return
    head = ["in BF16", *(f"{of}, {cores}" for cores in CORES for of in ("kernel", "compiler"))]
    by_lnc = [times_elsewhere(lnc) for lnc in CORES.values()]
    rows = [
        (of_row[0][0], *(f"{time:.0f}" for _, *both in of_row for time in both))
        for of_row in zip(*by_lnc, strict=True)
    ]
    PAGE.write_text(renewed(PAGE.read_text(), TABLE, markdown(head, rows)))


CORES = {"one core": 1, "two cores": 2}

if __name__ == "__main__":
    main()
