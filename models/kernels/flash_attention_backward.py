"""The gradients of `flash_attention`: Dao et al., "FlashAttention", 2022, algorithm 4.

Axis names: N query heads of all texts, K key-value heads of all texts, T positions, H head_dim.
"""

from typing import Any

import nki
import nki.isa as nisa
import nki.language as nl

from models.kernels.cores import own_part
from models.kernels.heads import BLOCK, Later, rows_of_head, score, turned_rows
from models.kernels.tiles import ROWS, Ring, extent, in_stages, parts, tile


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

    With P = exp(scale · query · keyᵀ - statistics), which is computed anew for 128 queries and 512
    keys at a time, and S = P · (of_attended · valueᵀ - taken), the gradients are Pᵀ · of_attended
    for the values, scale · Sᵀ · query for the keys and scale · S · key for the queries.

    Programs share the key-value heads. A block of 512 keys meets the tiles of 128 queries one after
    the other; its sums for keys and values stay in PSUM meanwhile, all others in SBUF. Stages are
    interleaved as in `flash_attention_kernel`.
    """
    (heads, length, _), kv_heads = query.shape, key.shape[0]
    group = heads // kv_heads
    of_query, of_key, of_value = (
        nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm) for x in (query, key, value)
    )
    later = Later(query.dtype)
    own = own_part(kv_heads)
    for kv_head in nl.affine_range(own.start, own.stop):
        keys, values = _Rows(key[kv_head]), _Rows(value[kv_head])
        of_keys, of_values = (_zeros(keys.parts.shape) for _ in range(2))
        for member in nl.affine_range(group):
            number = kv_head * group + member
            head = _Head(*(x[number] for x in (query, of_attended, statistics, taken)))
            for block in parts(length, BLOCK):
                work = _Work(keys, values, block, later, scale)
                meetings = [
                    _Meeting(head, rows, work) for rows in parts(length) if rows.stop > block.start
                ]
                in_stages(
                    meetings,
                    (0, _Meeting.score),
                    (2, _Meeting.differentiate),
                    (1, _Meeting.weigh),
                    (3, _Meeting.add),
                )
                place = slice(block.start // ROWS, block.stop // ROWS)
                for sums, new in ((of_keys, work.of_keys), (of_values, work.of_values)):
                    nisa.tensor_tensor(sums[:, place], sums[:, place], new, nl.add)
            _store(of_query[number], head.sums, scale)
        _store(of_key[kv_head], of_keys, scale)
        _store(of_value[kv_head], of_values, 1.0)
    return of_query, of_key, of_value


def _zeros(shape: tuple[int, ...]) -> Any:
    result = tile(shape)
    nisa.memset(result, 0.0, engine=nisa.engine.gpsimd)
    return result


class _Rows:
    """The rows x [T, H] of a head in SBUF: as parts [128, T / 128, H], and transposed [H, T]."""

    def __init__(self, x: Any) -> None:
        self.parts = rows_of_head(x)
        self.columns = turned_rows(self.parts)


class _Head:
    """The queries of a head, the gradient of what they attended to, and the sums of their own
    gradient [128, T / 128, H]; FP32 [128, T / 128]: minus the logarithms of the softmax's sums, and
    what is taken from the gradient of each weight."""

    def __init__(self, query: Any, of_attended: Any, statistics: Any, taken: Any) -> None:
        self.queries, self.gradient = _Rows(query), _Rows(of_attended)
        self.shift, self.taken = (rows_of_head(x) for x in (statistics, taken))
        nisa.tensor_scalar(self.shift, self.shift, nl.multiply, -1.0)
        self.sums = _zeros(self.queries.parts.shape)


class _Work:
    """What the meetings with a block of keys share."""

    def __init__(
        self, keys: _Rows, values: _Rows, block: slice, later: Later, scale: float
    ) -> None:
        self.keys, self.values, self.block = keys, values, block
        self.later, self.scale = later, scale
        self.begun: set[int] = set()  # parts of the block whose sums have begun
        _, _, width = keys.parts.shape
        dtype, turned = keys.parts.dtype, (ROWS, BLOCK // ROWS, ROWS)
        shape = ROWS, extent(block) // ROWS, width
        self.of_keys, self.of_values = (tile(shape, buffer=nl.psum) for _ in range(2))
        # Two banks of PSUM are the sums above, two are for scores, four for what follows.
        self.scores, self.of_weights = (Ring(2, (ROWS, BLOCK), buffer=nl.psum) for _ in range(2))
        self.weights, self.of_scores = (Ring(4, (ROWS, BLOCK), dtype) for _ in range(2))
        self.turned_in_psum, self.turned = Ring(1, turned, dtype, nl.psum), Ring(2, turned, dtype)
        self.products = Ring(1, (ROWS, width), buffer=nl.psum)


class _Meeting:
    """The gradients of the attention of 128 queries to a block of keys, as far as they see it."""

    def __init__(self, head: _Head, rows: slice, work: _Work) -> None:
        self.head, self.work, self.rows = head, work, rows
        self.block = slice(work.block.start, min(work.block.stop, rows.stop))
        self.number = rows.start // ROWS
        self.own = nl.ds(self.number, 1)
        self.size = nl.ds(0, extent(self.block))

    def score(self) -> None:
        """query · key [128, S], in PSUM."""
        self.scores = self.work.scores.take()[:, self.size]
        score(
            self.scores,
            self.head.queries.columns[:, self.rows],
            self.work.keys.columns,
            self.block,
            self.rows,
            self.work.later,
        )

    def weigh(self) -> None:
        """The weights exp(scale · score - the logarithm), and their gradient, in PSUM."""
        work = self.work
        self.weights = work.weights.take()[:, self.size]
        shift = self.head.shift[:, self.number]
        nisa.activation(self.weights, nl.exp, self.scores, bias=shift, scale=work.scale)
        self.of_weights = work.of_weights.take()[:, self.size]
        gradient = self.head.gradient.columns[:, self.rows]
        values = work.values.columns[:, self.block]
        nisa.nc_matmul(self.of_weights, gradient, values, accumulate=False)

    def differentiate(self) -> None:
        """The gradient of the scores, also transposed."""
        work = self.work
        self.of_scores = work.of_scores.take()[:, self.size]
        taken = self.head.taken[:, self.number]
        nisa.scalar_tensor_tensor(
            self.of_scores, self.of_weights, nl.subtract, taken, nl.multiply, self.weights
        )

    def add(self) -> None:
        """Adds to the gradients of values, keys and queries."""
        work, head = self.work, self.head
        self._turn()
        for place, part in enumerate(parts(self.of_scores.shape[1])):
            is_begun = place in work.begun
            work.begun.add(place)
            weights, of_scores = self.weights[:, part], self.of_scores[:, part]
            gradient, queries = (x.parts[:, self.number] for x in (head.gradient, head.queries))
            nisa.nc_matmul(work.of_values[:, place], weights, gradient, accumulate=is_begun)
            nisa.nc_matmul(work.of_keys[:, place], of_scores, queries, accumulate=is_begun)
        products, before = work.products.take(), work.block.start // ROWS
        for place in range(self.turned.shape[1]):
            keys = work.keys.parts[:, before + place]
            nisa.nc_matmul(products, self.turned[:, place], keys, accumulate=place > 0)
        sums = head.sums[:, self.number]
        nisa.tensor_tensor(sums, sums, products, nl.add)

    def _turn(self) -> None:
        count = nl.ds(0, self.of_scores.shape[1] // ROWS)
        in_psum = self.work.turned_in_psum.take()[:, count]
        self.turned = self.work.turned.take()[:, count]
        for number, part in enumerate(parts(self.of_scores.shape[1])):
            nisa.nc_transpose(in_psum[:, number], self.of_scores[:, part])
        nisa.tensor_copy(self.turned, in_psum)


def _store(place: Any, sums: Any, scale: float) -> None:
    """scale · sums [128, T / 128, H] to rows [T, H]."""
    result = tile(sums.shape, place.dtype)
    nisa.tensor_scalar(result, sums, nl.multiply, scale)
    for number, rows in enumerate(parts(place.shape[0])):
        nisa.dma_copy(dst=place[rows], src=result[:, number])
