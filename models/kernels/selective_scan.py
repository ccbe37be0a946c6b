"""The selective scan of state space models: Gu and Dao, "Mamba", 2023.

Axis names: T positions, D channels, S states of a channel.
"""

from typing import Any

import nki
import nki.isa as nisa
import nki.language as nl

from models.kernels.tiles import extent, loaded, parts, spread, tile


@nki.jit
def selective_scan(x: Any, step: Any, decay: Any, write: Any, read: Any, skip: Any) -> Any:
    """y[t] = Σ read[t] · h[t] + skip · x[t], h[t] = exp(step[t] · decay) · h[t-1] + step[t] ·
    write[t] · x[t], from h = 0.

    x and step [D, T], decay [D, S], write and read [S, T], skip [D, 1] -> y [D, T] of the dtype of
    x. All but x is FP32. A channel is a partition, and one instruction goes through all positions
    of a state; T positions must fit in SBUF.
    """
    channels = x.shape[0]
    y = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    for rows in parts(channels):
        data, steps, decays, skips = (loaded(a[rows]) for a in (x, step, decay, skip))
        total, weighted = tile(data.shape), tile(data.shape)
        nisa.tensor_scalar(total, data, nl.multiply, skips)
        nisa.tensor_tensor(weighted, data, steps, nl.multiply)
        for state in nl.affine_range(write.shape[0]):
            place = nl.ds(state, 1)
            writes, reads = (spread(a[place])[: extent(rows)] for a in (write, read))
            kept, written, history = (tile(data.shape) for _ in range(3))
            nisa.activation(kept, nl.exp, steps, scale=decays[:, place])
            nisa.tensor_tensor(written, weighted, writes, nl.multiply, engine=nisa.engine.gpsimd)
            nisa.tensor_tensor_scan(history, kept, written, 0.0, nl.multiply, nl.add)
            nisa.tensor_tensor(history, history, reads, nl.multiply)
            nisa.tensor_tensor(total, total, history, nl.add)
        result = tile(data.shape, x.dtype)
        nisa.tensor_copy(result, total)
        nisa.dma_copy(dst=y[rows], src=result)
    return y
