"""Linear algebra, transforms and special functions, and their gradients, against XLA on the CPU.

What engines have no instruction for is a call of the host between their kernels: it is the seam
that is looked at here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.numpy import fft
from jax.scipy import fft as cosine_transforms
from jax.scipy import linalg, signal, special

from tests.lower.differential import Tolerance, check

_RNG = np.random.default_rng(0)
SQUARE = _RNG.normal(size=(5, 5)).astype(np.float32)
SYMMETRIC = (SQUARE @ SQUARE.T + 5 * np.eye(5)).astype(np.float32)
TALL = _RNG.normal(size=(6, 4)).astype(np.float32)
BATCH = (_RNG.normal(size=(3, 5, 5)) + 6 * np.eye(5)).astype(np.float32)
LINE = _RNG.normal(size=16).astype(np.float32)
POSITIVE = _RNG.uniform(0.2, 2, size=(3, 4)).astype(np.float32)

CLOSE = Tolerance(relative=1e-4)
"""FP32, through a decomposition: its sums are added in another order."""

Case = tuple[Callable[..., Any], np.ndarray]
FUNCTIONS: dict[str, Case] = {
    "cholesky": (jnp.linalg.cholesky, SYMMETRIC),
    "inv": (jnp.linalg.inv, SYMMETRIC),
    "inv of a batch": (jnp.linalg.inv, BATCH),
    "det": (jnp.linalg.det, SQUARE),
    "slogdet": (jnp.linalg.slogdet, SQUARE),
    "eigvalsh": (jnp.linalg.eigvalsh, SYMMETRIC),
    "svdvals": (lambda x: jnp.linalg.svd(x, compute_uv=False), TALL),
    "qr": (jnp.linalg.qr, TALL),
    "solve": (lambda x: jnp.linalg.solve(x, x[:, 0] + 1), SYMMETRIC),
    "lstsq": (lambda x: jnp.linalg.lstsq(x, jnp.ones(6))[0], TALL),
    "pinv": (jnp.linalg.pinv, TALL),
    "matrix_power": (lambda x: jnp.linalg.matrix_power(x, 3), SQUARE),
    "norm of 2": (lambda x: jnp.linalg.norm(x, 2), SQUARE),
    "nuclear norm": (lambda x: jnp.linalg.norm(x, "nuc"), SQUARE),
    "cond": (jnp.linalg.cond, SQUARE),
    "lu": (linalg.lu, SQUARE),
    "cho_solve": (lambda x: linalg.cho_solve((x, True), jnp.ones(5)), SYMMETRIC),
    "expm": (linalg.expm, 0.3 * SQUARE),
    "a system of itself": (
        lambda x: linalg.solve_triangular(x[:3, :3] * 2, x[:3, :3] * 2, lower=True), SYMMETRIC
    ),
    "solve_triangular": (lambda x: linalg.solve_triangular(x, jnp.ones(5), lower=True), SYMMETRIC),
    "toeplitz": (linalg.toeplitz, LINE),
    "fft": (lambda x: jnp.abs(fft.fft(x)), LINE),
    "ifft": (lambda x: fft.ifft(x).real, LINE),
    "rfft": (lambda x: jnp.abs(fft.rfft(x)), LINE),
    "irfft": (fft.irfft, LINE),
    "fft2": (lambda x: jnp.abs(fft.fft2(x)), SQUARE),
    "fftn": (lambda x: jnp.abs(fft.fftn(x)), BATCH),
    "hfft": (fft.hfft, LINE),
    "dct": (cosine_transforms.dct, LINE),
    "stft": (lambda x: jnp.abs(signal.stft(x, nperseg=8)[2]), LINE),
    "fftconvolve": (lambda x: signal.fftconvolve(x, x[:5]), LINE),
    "convolve2d": (lambda x: signal.convolve2d(x, x), SQUARE),
    "cross": (lambda x: jnp.cross(x[:, :3], x[:, 1:4]), SQUARE),
    "betaln": (lambda x: special.betaln(x, x[::-1] + 0.3), POSITIVE),
    "gammainc": (lambda x: special.gammainc(x[::-1] + 0.3, x), POSITIVE),
    "rel_entr": (lambda x: special.rel_entr(x, x[::-1] + 0.3), POSITIVE),
    "xlogy": (lambda x: special.xlogy(x, x[::-1] + 0.3), POSITIVE),
    "zeta": (lambda x: special.zeta(x + 1.5, 1.2), POSITIVE),
    "polygamma": (lambda x: special.polygamma(2, x), POSITIVE),
    "logit": (lambda x: special.logit(x / 3), POSITIVE),
    "erfinv": (lambda x: special.erfinv(x / 3), POSITIVE),
    "ndtri": (lambda x: special.ndtri(x / 3), POSITIVE),
    **{
        name: (getattr(special, name), POSITIVE)
        for name in (
            "gammaln", "digamma", "erf", "erfc", "expit", "i0", "i0e", "i1", "i1e", "log_ndtr",
            "entr", "expi", "gamma", "factorial", "logsumexp", "log_softmax",
        )
    },
}  # fmt: skip


def _weighted_sum(function: Callable[..., Any]) -> Callable[[jax.Array], jax.Array]:
    """Makes a number of all results, in which no two elements weigh the same."""

    def total(x: jax.Array) -> jax.Array:
        results = [r for r in jax.tree.leaves(function(x)) if jnp.issubdtype(r.dtype, np.floating)]
        weights = [jnp.cos(jnp.arange(r.size, dtype=r.dtype).reshape(r.shape)) for r in results]
        return sum((jnp.sum(r * w) for r, w in zip(results, weights, strict=True)), jnp.zeros(()))

    return total


@pytest.mark.parametrize("of", ["values", "gradient"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_engines_agree(name: str, of: str) -> None:
    function, argument = FUNCTIONS[name]
    check(
        function if of == "values" else jax.grad(_weighted_sum(function)),
        argument,
        tolerance=CLOSE,
        host=True,
    )
