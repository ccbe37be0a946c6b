"""The kernels of `models.kernels` without JAX around them, in program order and in an adversarial
one, against numpy in FP64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from models.kernels import cross_entropy
from models.kernels.adamw import adamw
from models.kernels.blockwise_moe import blockwise_swiglu
from models.kernels.flash_attention import flash_attention_kernel
from models.kernels.flash_attention_backward import flash_attention_gradients
from models.kernels.fp8 import quantised
from models.kernels.rms_norm import rms_norm_kernel
from models.kernels.rms_norm_qkv import rms_norm_qkv
from models.kernels.rope import rope_kernel
from models.kernels.router import top_experts
from models.kernels.selective_scan import selective_scan
from models.kernels.swiglu import swiglu_kernel
from neuronjax import nki
from neuronjax.emulate import core

ORDERS = {"program": None, "adversarial": core.DataflowOrder(seed=2, adversarial=True)}
ROWS = 150
"""A whole tile of 128 rows, and one of 22."""

RNG = np.random.default_rng(0)
Expected = tuple[np.ndarray, ...]
Case = Callable[[], tuple[Any, tuple[Any, ...], Expected]]
"""Makes a kernel, its arguments, and what it returns in FP64."""


def drawn(*shape: int, scale: float = 1.0) -> np.ndarray:
    return (scale * RNG.standard_normal(shape)).astype(np.float32)


def wide(*arrays: np.ndarray) -> list[np.ndarray]:
    return [array.astype(np.float64) for array in arrays]


def rotary() -> Any:
    """The last four numbers of a head stay."""
    x, angles = drawn(ROWS, 3, 20), drawn(ROWS, 8)
    cos, sin = np.cos(angles), np.sin(angles)
    low, high, rest = np.split(x.astype(np.float64), [8, 16], axis=-1)
    c, s = (a[:, None] for a in wide(cos, sin))
    turned = np.concatenate([low * c - high * s, high * c + low * s, rest], axis=-1)
    return rope_kernel, (x, cos, sin), (turned,)


def turned_back() -> Any:
    _, (x, cos, sin), (turned,) = rotary()
    return rope_kernel, (turned.astype(np.float32), cos, sin, True), (x,)


def logits() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Whose largest lie in later blocks; the targets, and the logarithms of the softmax's sums."""
    x = drawn(ROWS, 100, scale=4.0)
    x[:, 60:] += 3
    exact = x.astype(np.float64)
    return x, RNG.integers(0, 100, (ROWS, 1)).astype(np.int32), np.log(
        np.sum(np.exp(exact), axis=1, keepdims=True)
    )  # fmt: skip


def losses() -> Any:
    x, targets, logarithms = logits()
    own = np.take_along_axis(x.astype(np.float64), targets, axis=1)
    return cross_entropy.cross_entropy_kernel, (x, targets), (logarithms - own, logarithms)


def gradients_of_losses() -> Any:
    x, targets, logarithms = logits()
    of_losses = drawn(ROWS, 1)
    expected = np.exp(x.astype(np.float64) - logarithms)
    expected[np.arange(ROWS), targets[:, 0]] -= 1
    arguments = x, targets, logarithms.astype(np.float32), of_losses
    return cross_entropy.cross_entropy_gradient, arguments, (of_losses * expected,)


def step_of_adamw() -> Any:
    rate, beta1, beta2, eps, decay, step = 1e-2, 0.9, 0.99, 1e-8, 0.1, 3
    weights, gradients, means, squares = (drawn(ROWS, 24) for _ in range(4))
    squares = squares**2
    scalars = np.array([[rate, 1 / (1 - beta1**step), 1 / (1 - beta2**step)]], np.float32)
    w, g, m, v = wide(weights, gradients, means, squares)
    m, v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g**2
    moved = m / (1 - beta1**step) / (np.sqrt(v / (1 - beta2**step)) + eps) + decay * w
    arguments = weights, gradients, means, squares, scalars, beta1, beta2, eps, decay
    return adamw, arguments, (w - rate * moved, m, v)


def router() -> Any:
    x, weights, count = drawn(ROWS, 200), drawn(200, 16), 3
    scores = np.matmul(*wide(x, weights))
    experts = np.argsort(-scores, axis=1)[:, :count]
    shares = np.exp(np.take_along_axis(scores, experts, axis=1))
    arguments = x, weights, count
    return top_experts, arguments, (experts, shares / shares.sum(axis=1, keepdims=True))


def narrow() -> Any:
    x = drawn(ROWS, 64)
    x[3] = 0
    (exact,) = wide(x)
    scales = np.maximum(np.abs(exact).max(axis=1, keepdims=True), 1e-10) / 240
    return quantised, (x,), ((exact / scales).astype(ml_dtypes.float8_e4m3), scales)


def scan() -> Any:
    channels, length, states = ROWS, 40, 4
    x, step, skip = drawn(channels, length), drawn(channels, length), drawn(channels, 1)
    step, decay = np.log1p(np.exp(step)), -np.exp(drawn(channels, states))
    write, read = drawn(states, length), drawn(states, length)
    a, b, c, d, e, f = wide(x, step, decay, write, read, skip)
    history, y = np.zeros((channels, states)), np.zeros((channels, length))
    for t in range(length):
        own = b[:, t, None]
        history = np.exp(own * c) * history + own * d[:, t] * a[:, t, None]
        y[:, t] = history @ e[:, t] + f[:, 0] * a[:, t]
    return selective_scan, (x, step, decay, write, read, skip), (y,)


def projections() -> Any:
    x, scale, weights, eps = drawn(ROWS, 200), drawn(1, 200), drawn(200, 600), 1e-5
    a, b, c = wide(x, scale, weights)
    normed = a / np.sqrt(np.mean(a**2, axis=1, keepdims=True) + eps) * b
    return rms_norm_qkv, (x, scale, weights, eps), (normed @ c,)


def gated(x: np.ndarray, gate: np.ndarray, up: np.ndarray, down: np.ndarray) -> np.ndarray:
    x, gate, up, down = wide(x, gate, up, down)
    hidden: np.ndarray = x @ gate
    result: np.ndarray = (hidden / (1 + np.exp(-hidden)) * (x @ up)) @ down
    return result


def feed_forward() -> Any:
    """More rows than share their weights, and widths that are no multiples of a tile's."""
    x, gate, up, down = drawn(520, 150), *(drawn(*s, scale=0.1) for s in _shapes(150, 140))
    return swiglu_kernel, (x, gate, up, down), (gated(x, gate, up, down),)


def _shapes(width: int, hidden: int) -> list[tuple[int, int]]:
    return [(width, hidden), (width, hidden), (hidden, width)]


def norms() -> Any:
    x, scale, eps = drawn(ROWS, 60), drawn(1, 60), 1e-5
    a, b = wide(x, scale)
    normed = a / np.sqrt(np.mean(a**2, axis=1, keepdims=True) + eps) * b
    return rms_norm_kernel, (x, scale, eps), (normed,)


HEADS, KV_HEADS, LENGTH, SCALE = 6, 3, 256, 0.3


def attention() -> Any:
    """Of heads that two programs cannot share evenly."""
    query, key, value = (drawn(n, LENGTH, 16) for n in (HEADS, KV_HEADS, KV_HEADS))
    weights, logarithms = attended_by(query, key)
    result = weights @ np.repeat(value.astype(np.float64), HEADS // KV_HEADS, axis=0)
    return flash_attention_kernel, (query, key, value, SCALE), (result, logarithms)


def attended_by(query: np.ndarray, key: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The softmax over what is not later, and the logarithm of its sum."""
    q, k = wide(query, np.repeat(key, HEADS // KV_HEADS, axis=0))
    scores = np.where(np.tri(LENGTH, dtype=bool), SCALE * q @ k.transpose(0, 2, 1), -np.inf)
    logarithms = np.log(np.sum(np.exp(scores), axis=-1, keepdims=True))
    return np.exp(scores - logarithms), logarithms


def gradients_of_attention() -> Any:
    _, (query, key, value, _), (attended, logarithms) = attention()
    of_attended = drawn(*query.shape)
    group = HEADS // KV_HEADS
    q, k, v, g = wide(query, np.repeat(key, group, 0), np.repeat(value, group, 0), of_attended)
    weights, _ = attended_by(query, key)
    taken = np.sum(g * attended, axis=-1, keepdims=True)
    of_scores = SCALE * weights * (g @ v.transpose(0, 2, 1) - taken)
    of_key, of_value = (
        x.reshape(KV_HEADS, group, LENGTH, -1).sum(axis=1)
        for x in (of_scores.transpose(0, 2, 1) @ q, weights.transpose(0, 2, 1) @ g)
    )
    sums = (logarithms.astype(np.float32), taken.astype(np.float32))
    arguments = query, key, value, of_attended, *sums, SCALE
    return flash_attention_gradients, arguments, (of_scores @ k, of_key, of_value)


def experts() -> Any:
    x, (gate, up, down) = drawn(ROWS, 64), (drawn(3, *s, scale=0.2) for s in _shapes(64, 48))
    tokens = RNG.integers(0, ROWS, (256, 1)).astype(np.int32)
    of_block = np.array([[2], [0]], np.int32)
    blocks = [
        gated(x[rows[:, 0]], gate[e], up[e], down[e])
        for rows, e in zip(np.split(tokens, 2), of_block[:, 0], strict=True)
    ]
    return blockwise_swiglu, (x, tokens, of_block, gate, up, down), (np.concatenate(blocks),)


CASES: dict[str, Case] = {
    case.__name__: case
    for case in (
        rotary,
        turned_back,
        losses,
        gradients_of_losses,
        step_of_adamw,
        router,
        narrow,
        scan,
        projections,
        feed_forward,
        norms,
        attention,
        gradients_of_attention,
        experts,
    )
}


@pytest.mark.parametrize("name", CASES)
def test_values_in_every_order(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cross_entropy, "BLOCK", 40)  # three blocks
    check(*CASES[name]())


OF_TWO_PROGRAMS = (
    "step_of_adamw",
    "router",
    "rotary",
    "losses",
    "gradients_of_losses",
    "projections",
    "feed_forward",
    "norms",
    "attention",
    "gradients_of_attention",
    "experts",
)
SEEDS = range(10)


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", CASES)
def test_no_order_finds_a_fault(name: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every race, and every read of what nobody or somebody else has written, is an error or a
    warning."""
    monkeypatch.setattr(cross_entropy, "BLOCK", 40)
    kernel, arguments, expected = CASES[name]()
    for grid in (kernel, kernel[2]) if name in OF_TWO_PROGRAMS else (kernel,):
        check_in(core.DataflowOrder(seed), grid, arguments, expected)


@pytest.mark.parametrize("name", OF_TWO_PROGRAMS)
def test_values_of_two_programs(name: str) -> None:
    """Which share the work, so that both together take less time than one."""
    kernel, arguments, expected = CASES[name]()
    check(kernel[2], arguments, expected)
    alone, both = (nki.benchmark(k, *arguments).total_ns for k in (kernel, kernel[2]))
    assert both < alone


def check(kernel: Any, arguments: tuple[Any, ...], expected: Expected) -> None:
    for order in ORDERS.values():
        check_in(order, kernel, arguments, expected)


def check_in(
    order: core.Order | None, kernel: Any, arguments: tuple[Any, ...], expected: Expected
) -> None:
    results = nki.simulate(kernel, order)(*arguments)
    results = results if isinstance(results, tuple) else (results,)
    for result, right in zip(results, expected, strict=True):
        assert result.shape == right.shape
        right = right.astype(np.float64)
        error = np.abs(result.astype(np.float64) - right).max()
        assert error <= 1e-5 * np.abs(right).max()
