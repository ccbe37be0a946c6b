"""The router of a mixture of experts: the experts of each token, and their weights.

Axis names: N tokens, D model width, E experts.
"""

from typing import Any

import nki
import nki.isa as nisa
import nki.language as nl

from models.kernels.cores import own_part
from models.kernels.products import add_up, columns_of, loaded_weights
from models.kernels.tiles import ROWS, extent, loaded, parts, tile

MOST_CHOSEN = 8
"""Experts of a token: the largest numbers of a row that one instruction finds."""


@nki.jit
def top_experts(x: Any, router: Any, count: int) -> tuple[Any, Any]:
    """The experts with the `count` largest logits x · router, largest first, and their softmax.

    x [N, D], router [D, E] with E from 8 to 512 -> uint32 experts [N, count] and FP32 weights
    [N, count], which add up to 1. `count` is at most 8.
    """
    tokens = x.shape[0]
    experts, weights = (
        nl.ndarray((tokens, count), dtype=dtype, buffer=nl.shared_hbm)
        for dtype in (nl.uint32, nl.float32)
    )
    kernels = loaded_weights(router, slice(0, router.shape[1]))
    own = own_part(tokens, ROWS)
    for rows in parts(own.stop, first=own.start):
        logits = _logits(loaded(x[rows]), kernels)
        largest, places = (
            tile((extent(rows), MOST_CHOSEN)),
            tile((extent(rows), MOST_CHOSEN), nl.uint32),
        )
        nisa.max8(largest, logits)
        nisa.nc_find_index8(places, logits, largest)
        chosen, lowest, total = (
            largest[:, nl.ds(0, count)],
            *(tile((extent(rows), 1)) for _ in "12"),
        )
        nisa.tensor_scalar(lowest, largest[:, nl.ds(0, 1)], nl.multiply, -1.0)
        shares = tile((extent(rows), count))
        nisa.activation_reduce(shares, nl.exp, chosen, nl.add, total, bias=lowest)
        nisa.reciprocal(total, total)
        nisa.tensor_scalar(shares, shares, nl.multiply, total)
        nisa.dma_copy(dst=experts[rows], src=places[:, nl.ds(0, count)])
        nisa.dma_copy(dst=weights[rows], src=shares)
    return experts, weights


def _logits(x: Any, kernels: list[Any]) -> Any:
    """x [P, D] · the parts of the router -> FP32 [P, E] in SBUF."""
    logits = tile((x.shape[0], kernels[0].shape[1]))
    nisa.tensor_copy(logits, add_up(columns_of(x), kernels))
    return logits
