"""The hand-written programs with arguments, and what numpy makes of those in FP64."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import ml_dtypes
import numpy as np

from neuronjax.program.program import Program
from neuronjax.program.text import parse

GOLDEN = Path(__file__).parents[1] / "program" / "golden"
Arrays = dict[str, np.ndarray]


def golden(name: str) -> Program:
    return parse((GOLDEN / f"{name}.txt").read_text())


@dataclass(frozen=True)
class Case:
    """Arguments of all ranks, the results of rank 0, and how close they must be."""

    arguments: Callable[[np.random.Generator], list[Arrays]]
    expected: Callable[[list[Arrays]], Arrays]
    tolerance: float = 1e-6


def wide(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float64)


def normal(rng: np.random.Generator, *shape: int, dtype: type = np.float32) -> np.ndarray:
    return rng.standard_normal(shape).astype(dtype)


BF16 = ml_dtypes.bfloat16


def _attention_mask(args: list[Arrays]) -> Arrays:
    scores = wide(args[0]["scores"])
    masked = np.where(np.tril(np.ones((64, 64))) > 0, scores, wide(np.array(-30000.0, BF16)))
    best = []
    for row in masked:
        tops = sorted(row, reverse=True)[:8]
        best.append([list(row).index(top) for top in tops])
    return {"best": np.array(best), "turned": masked.T}


def _gelu(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * np.array([1 + math.erf(each / math.sqrt(2)) for each in x])


def _layer_norm(args: list[Arrays]) -> Arrays:
    x = wide(args[0]["x"])
    return {"y": (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5)}


def _rms_norm(args: list[Arrays]) -> Arrays:
    x, gain = wide(args[0]["x"]), wide(args[0]["gain"])
    return {"y": x / np.sqrt((x**2).mean(1, keepdims=True) + 1e-6) * gain}


def _scatter_add(args: list[Arrays]) -> Arrays:
    total = wide(args[0]["gradient"])
    np.add.at(total, args[0]["tokens"], wide(args[0]["updates"]))
    return {"sum": total}


def _softmax(args: list[Arrays]) -> Arrays:
    power = np.exp(wide(args[0]["x"]) - args[0]["x"].max(1, keepdims=True))
    return {"y": power / power.sum(1, keepdims=True)}


def _blocks(x: np.ndarray, element: type, greatest: int) -> np.ndarray:
    """Values of MX blocks, 8 partitions by 4 neighbours, by the formula of quantize_mx."""
    x = wide(x)
    result = np.empty_like(x)
    for row in range(0, x.shape[0], 8):
        for column in range(0, x.shape[1], 4):
            block = x[row : row + 8, column : column + 4]
            scale = 2.0 ** (math.floor(math.log2(abs(block).max())) - (greatest - 1))
            result[row : row + 8, column : column + 4] = (
                wide((block / scale).astype(element)) * scale
            )
    return result


def _mx_matmul(args: list[Arrays]) -> Arrays:
    a = _blocks(args[0]["a"], ml_dtypes.float8_e4m3fn, 8).reshape(128, 128, 4)
    b = _blocks(args[0]["b"], ml_dtypes.float8_e5m2, 15).reshape(128, 512, 4)
    return {"c": np.einsum("pmj,pnj->mn", a, b)}


CASES: dict[str, Case] = {
    "all_reduce": Case(
        lambda rng: [{"gradient": normal(rng, 256, 512)} for _ in range(4)],
        lambda args: {"mean": sum(wide(each["gradient"]) for each in args) / 4},
    ),
    "attention_mask": Case(
        lambda rng: [{"scores": rng.permutation(4096).reshape(64, 64).astype(BF16)}],
        _attention_mask,
        0.0,
    ),
    "control": Case(
        lambda rng: [{"cache": normal(rng, 256, 64), "start": np.array([250], np.int32)}],
        lambda args: {"out": _gelu(wide(args[0]["cache"][255]))[None]},
    ),
    "embedding": Case(
        lambda rng: [{
            "table": normal(rng, 32000, 512, dtype=BF16),
            "tokens": rng.integers(0, 32000, 256).astype(np.uint32),
        }],
        lambda args: {"y": wide(args[0]["table"][args[0]["tokens"]])},
        0.0,
    ),
    "layer_norm": Case(lambda rng: [{"x": normal(rng, 128, 1024)}], _layer_norm),
    "matmul": Case(
        lambda rng: [{
            "a": normal(rng, 512, 256, dtype=BF16), "b": normal(rng, 512, 1024, dtype=BF16),
        }],
        lambda args: {"c": wide(args[0]["a"]).T @ wide(args[0]["b"])},
    ),
    "mx_matmul": Case(
        lambda rng: [{
            "a": normal(rng, 128, 512, dtype=BF16), "b": normal(rng, 128, 2048, dtype=BF16),
        }],
        _mx_matmul,
        2.0**-8,
    ),
    "rms_norm": Case(
        lambda rng: [{
            "x": normal(rng, 1024, 2048, dtype=BF16), "gain": normal(rng, 2048, dtype=BF16),
        }],
        _rms_norm,
        2.0**-8,
    ),
    "scatter_add": Case(
        lambda rng: [{
            "gradient": normal(rng, 1000, 64),
            "updates": normal(rng, 32, 64),
            "tokens": rng.permutation(1000)[:32].astype(np.uint32),
        }],
        _scatter_add,
    ),
    "softmax": Case(lambda rng: [{"x": normal(rng, 128, 1000)}], _softmax),
}  # fmt: skip
"""Name of a program -> its case."""


def on_host(instruction: object, sources: list[np.ndarray]) -> list[np.ndarray]:
    """The programs' one piece of work for the host writes what nobody reads."""
    return [np.zeros(source.shape, source.dtype) for source in sources]


def assert_close(found: Arrays, expected: Arrays, tolerance: float) -> None:
    """Every result is near what is expected: as a part of itself, or of a thousandth of the rest.

    FP32 results come with sums of any order: they may be off by ten steps of the greatest.
    """
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        size = np.maximum(np.abs(value), 1e-3 * np.abs(value).max())
        allowed = tolerance * size if tolerance > 1e-3 else 10 * tolerance * np.abs(value).max()
        assert np.all(np.abs(wide(found[name]) - value) <= allowed), name
