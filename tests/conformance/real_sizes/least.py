"""What a program must do at least, from JAX's own form of it: bytes, and multiplications.

Values that nothing reads cost nothing; of convolutions those pairs of a tap and an element count
that lie within the image. Loops whose trips depend on data count as none.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.extend.core import Literal

from tests.conformance.real_sizes.program import SizedProgram


@dataclass(frozen=True)
class Least:
    """Bytes of HBM, and FLOPs by the format of the operands, of one core."""

    nbytes: float
    flops: Mapping[str, float]

    def time_ns(self, bandwidth: float, peaks: Mapping[str, float]) -> float:
        """The roofline, for bytes/s and FLOP/s; formats without a peak have the best one."""
        best = max(peaks.values())
        multiplied = sum(n / peaks.get(dtype, best) for dtype, n in self.flops.items())
        return 1e9 * max(self.nbytes / bandwidth, multiplied)


def least(program: SizedProgram) -> Least:
    """What each core must do, if the work is divided evenly: of an argument that lies whole on all
    of them, each may need its share alone."""
    arguments, written = program.arguments, program.written
    given = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in arguments.values()]
    jaxpr = jax.make_jaxpr(program.step)(*given).jaxpr
    flops, used = live_work(jaxpr)
    ranks = math.prod(program.mesh.values())
    nbytes = sum(_nbytes(each.aval) for each in jaxpr.outvars) / ranks
    for (name, argument), is_used in zip(arguments.items(), used, strict=True):
        nbytes += is_used * argument.nbytes * written.read.get(name, 1.0) / ranks
    if written.least_bytes is not None:
        nbytes = written.least_bytes / ranks
    share = written.flops_share / ranks
    return Least(nbytes, {dtype: n * share for dtype, n in flops.items()})


def _nbytes(aval: Any) -> int:
    return math.prod(aval.shape) * aval.dtype.itemsize


def live_work(jaxpr: Any, wanted: Sequence[bool] | None = None) -> tuple[Counter[str], list[bool]]:
    """The FLOPs of what the wanted results need, and which arguments they need."""
    wanted = [True] * len(jaxpr.outvars) if wanted is None else wanted
    live = {var for var, is_wanted in zip(jaxpr.outvars, wanted, strict=True) if is_wanted}
    flops: Counter[str] = Counter()
    for eqn in reversed(jaxpr.eqns):
        results = [var in live for var in eqn.outvars]
        if not any(results):
            continue
        inner, times = _inner(eqn), eqn.params.get("length", 1)
        read = [True] * len(eqn.invars)
        if inner is not None:
            within, read = live_work(inner, results if times == 1 else None)
            flops.update({dtype: n * times for dtype, n in within.items()})
        elif eqn.primitive.name in _RULES:
            flops[_format(eqn)] += _RULES[eqn.primitive.name](eqn)
        live |= {
            var
            for var, is_read in zip(eqn.invars, read, strict=True)
            if is_read and not isinstance(var, Literal)
        }
    return flops, [var in live for var in jaxpr.invars]


def _inner(eqn: Any) -> Any:
    """The body of a call or of a scan, whose arguments are those of the equation."""
    for name in ("jaxpr", "call_jaxpr"):
        body = eqn.params.get(name)
        if body is not None:
            body = getattr(body, "jaxpr", body)
            return body if len(body.invars) == len(eqn.invars) else None
    return None


def _format(eqn: Any) -> str:
    """The wider of the operands' formats that the Tensor engine multiplies."""
    names = {str(var.aval.dtype) for var in eqn.invars[:2]}
    return "float32" if names == {"float32"} else next(iter(sorted(names - {"float32"})))


def _dot(eqn: Any) -> int:
    (contracted, _), _ = eqn.params["dimension_numbers"]
    left = eqn.invars[0].aval.shape
    return 2 * math.prod(left[axis] for axis in contracted) * math.prod(eqn.outvars[0].aval.shape)


def _ragged(eqn: Any) -> int:
    left, right = (var.aval.shape for var in eqn.invars[:2])
    return 2 * math.prod(left) * right[-1]


def _convolution(eqn: Any) -> int:
    numbers, of = eqn.params["dimension_numbers"], eqn.params
    image, kernel = (var.aval.shape for var in eqn.invars[:2])
    result = eqn.outvars[0].aval.shape
    pairs = 1
    for at, (low, _) in enumerate(of["padding"]):
        pairs *= _pairs(
            image[numbers.lhs_spec[2 + at]], kernel[numbers.rhs_spec[2 + at]],
            result[numbers.out_spec[2 + at]], of["window_strides"][at], low,
            of["lhs_dilation"][at], of["rhs_dilation"][at],
        )  # fmt: skip
    batch, features = (result[axis] for axis in numbers.out_spec[:2])
    return 2 * batch * features * int(kernel[numbers.rhs_spec[1]]) * pairs


def _pairs(
    size: int, taps: int, results: int, stride: int, low: int, spread: int, dilation: int
) -> int:
    """Pairs of a result and a tap along one axis that meet an element of the image."""
    at = np.arange(results)[:, None] * stride + np.arange(taps) * dilation - low
    return int(((at >= 0) & (at <= (size - 1) * spread) & (at % spread == 0)).sum())


_RULES: Mapping[str, Callable[[Any], int]] = {
    "dot_general": _dot,
    "ragged_dot_general": _ragged,
    "ragged_dot": _ragged,
    "conv_general_dilated": _convolution,
}
