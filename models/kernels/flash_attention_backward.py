"""The gradients of `flash_attention`: Dao et al., "FlashAttention", 2022, algorithm 4.

Axis names: N query heads of all texts, K key-value heads of all texts, T positions, H head_dim.
"""

from typing import Any

import nki
import nki.isa as nisa
import nki.language as nl

from models.kernels.tiles import ROWS, below_the_diagonal, loaded, tile, transposed


@nki.jit
def flash_attention_gradients(
    query: Any,
    key: Any,
    value: Any,
    of_attended: Any,
    statistics: Any,
    taken: Any,
    scale: float,
) -> tuple[Any, Any, Any]:
    """The gradients for query, key and value of causal attention, of the same shapes and dtypes.

    query and of_attended, the gradient of the attended values, [N, T, H], key and value [K, T, H];
    FP32 [N, T, 1]: the logarithms of the softmax's sums, and the sums of attended · of_attended.
    T is a multiple of 128, H at most 128.

    With P = exp(scale · query · keyᵀ - statistics), which is computed anew for 128 queries and 128
    keys at a time, and S = P · (of_attended · valueᵀ - taken), the gradients are Pᵀ · of_attended
    for the values, scale · Sᵀ · query for the keys and scale · S · key for the queries.
    """
    (heads, length, width), kv_heads = query.shape, key.shape[0]
    group, parts = heads // kv_heads, length // ROWS
    of_query, of_key, of_value = (
        nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm) for x in (query, key, value)
    )
    for kv_head in nl.affine_range(kv_heads):
        keys, values = _Rows(key[kv_head]), _Rows(value[kv_head])
        key_sums, value_sums = (tile((ROWS, parts, width)) for _ in range(2))
        nisa.memset(key_sums, 0.0)
        nisa.memset(value_sums, 0.0)
        for member in nl.affine_range(group):
            head = kv_head * group + member
            for part in nl.static_range(parts):
                rows = nl.ds(part * ROWS, ROWS)
                inputs = query[head, rows], of_attended[head, rows]
                sums = statistics[head, rows], taken[head, rows]
                result = _of_queries(inputs, sums, keys, values, key_sums, value_sums, part, scale)
                _store(of_query[head, rows], result, scale)
        for part in nl.static_range(parts):
            rows = nl.ds(part * ROWS, ROWS)
            _store(of_key[kv_head, rows], key_sums[:, part], scale)
            _store(of_value[kv_head, rows], value_sums[:, part], 1.0)
    return of_query, of_key, of_value


class _Rows:
    """The rows x [T, H] of a head in SBUF: as parts [128, T / 128, H], and transposed [H, T]."""

    def __init__(self, x: Any) -> None:
        length, width = x.shape
        self.parts = tile((ROWS, length // ROWS, width), x.dtype)
        self.columns = tile((width, length), x.dtype)
        for part in nl.affine_range(length // ROWS):
            rows = nl.ds(part * ROWS, ROWS)
            nisa.dma_copy(dst=self.parts[:, part], src=x[rows])
            transposed(self.columns[:, rows], self.parts[:, part])


def _of_queries(
    inputs: tuple[Any, Any],
    sums: tuple[Any, Any],
    keys: _Rows,
    values: _Rows,
    key_sums: Any,
    value_sums: Any,
    own: int,
    scale: float,
) -> Any:
    """The gradient of the queries of part `own`, in PSUM [128, H], but for its scale; what they add
    to those of keys and values goes to the sums [128, T / 128, H]."""
    queries, gradient = (_Rows(x) for x in inputs)
    shift, taken = (loaded(x) for x in sums)
    nisa.tensor_scalar(shift, shift, nl.multiply, -1.0)
    width = queries.parts.shape[2]
    summed = tile((ROWS, width), buffer=nl.psum)
    for part in nl.static_range(own + 1):
        columns = nl.ds(part * ROWS, ROWS)
        scores, of_weights = (tile((ROWS, ROWS), buffer=nl.psum) for _ in range(2))
        nisa.nc_matmul(scores, queries.columns, keys.columns[:, columns])
        weights = tile((ROWS, ROWS), queries.parts.dtype)
        nisa.activation(weights, nl.exp, scores, bias=shift, scale=scale)
        if part == own:
            below_the_diagonal(weights, weights, otherwise=0.0)
        _add_product(value_sums[:, part], weights, gradient.parts[:, 0])
        nisa.nc_matmul(of_weights, gradient.columns, values.columns[:, columns])
        of_scores = tile((ROWS, ROWS), queries.parts.dtype)
        nisa.scalar_tensor_tensor(of_scores, of_weights, nl.subtract, taken, nl.multiply, weights)
        _add_product(key_sums[:, part], of_scores, queries.parts[:, 0])
        turned = tile((ROWS, ROWS), of_scores.dtype)
        transposed(turned, of_scores)
        nisa.nc_matmul(summed, turned, keys.parts[:, part], accumulate=part > 0)
    return summed


def _add_product(total: Any, stationary: Any, moving: Any) -> None:
    """total [M, H] += stationaryᵀ · moving, of [128, M] and [128, H]."""
    product = tile(total.shape, buffer=nl.psum)
    nisa.nc_matmul(product, stationary, moving)
    nisa.tensor_tensor(total, total, product, nl.add)


def _store(place: Any, total: Any, scale: float) -> None:
    result = tile(place.shape, place.dtype)
    nisa.tensor_scalar(result, total, nl.multiply, scale)
    nisa.dma_copy(dst=place, src=result)
