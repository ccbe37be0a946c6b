"""Sorts, the best of many, and sums from the left."""

from __future__ import annotations

from tests.conformance.real_sizes.kind import FLOATS, YES_OR_NO, Array, Kind, Written, need

_ROWS = (1, 3, 8, 64, 100, 128, 200, 1000)
_WIDTHS = (8, 64, 100, 512, 1000, 4096, 16_384, 32_000, 128_256)
_SORTS = {
    "sort": "return jnp.sort(x, {axis})",
    "argsort": "return jnp.argsort(x, {axis})",
    "descending": "return jnp.sort(x, {axis}, descending=True)",
    "pairs": "return lax.sort((x, lax.broadcasted_iota('int32', x.shape, 1)), dimension={axis}, "
    "num_keys=1)",
    "median": "return jnp.median(x.astype('float32'), {axis})",
}
_SCANS = {
    "cumsum": "return jnp.cumsum(x, {axis})",
    "cummax": "return lax.cummax(x, {axis})",
    "cumprod": "return jnp.cumprod(x, {axis})",
    "cumlogsumexp": "return lax.cumlogsumexp(x, {axis})",
    "backwards": "return lax.cumsum(x, {axis}, reverse=True)",
}


def sorting(rows: int, width: int, how: str, first_axis: bool, dtype: str) -> Written:
    shape = (width, rows) if first_axis else (rows, width)
    body = _SORTS[how].format(axis=0 if first_axis else 1)
    return Written(arguments={"x": Array(shape, dtype)}, body=body)


def best(rows: int, width: int, k: int, dtype: str) -> Written:
    need(k <= width)
    x = Array((rows, width), dtype)
    return Written(arguments={"x": x}, body=f"return lax.top_k(x, {k})")


def scan_from_left(rows: int, width: int, how: str, first_axis: bool, dtype: str) -> Written:
    shape = (width, rows) if first_axis else (rows, width)
    body = _SCANS[how].format(axis=0 if first_axis else 1)
    return Written(arguments={"x": Array(shape, dtype)}, body=body)


def scan_in_the_middle(batch: int, positions: int, width: int, how: str, dtype: str) -> Written:
    x = Array((batch, positions, width), dtype)
    return Written(arguments={"x": x}, body=_SCANS[how].format(axis=1))


def search(items: int, edges: int, dtype: str) -> Written:
    arrays = {"edges": Array((edges,), dtype), "x": Array((items,), dtype)}
    return Written(
        arguments=arrays, body="return jnp.searchsorted(edges, x)", least_bytes=5 * items
    )


KINDS = {
    "sorting": Kind(
        sorting,
        {"rows": _ROWS, "width": _WIDTHS, "how": tuple(_SORTS), "first_axis": YES_OR_NO}
        | {"dtype": FLOATS},
        rows="rows",
    ),
    "best": Kind(
        best, {"rows": _ROWS, "width": _WIDTHS, "k": (1, 2, 8, 50, 256), "dtype": FLOATS}, "rows"
    ),
    "scan_from_left": Kind(
        scan_from_left,
        {"rows": _ROWS, "width": _WIDTHS, "how": tuple(_SCANS), "first_axis": YES_OR_NO}
        | {"dtype": FLOATS},
        rows="rows",
    ),
    "scan_in_the_middle": Kind(
        scan_in_the_middle,
        {"batch": (1, 8, 128), "positions": (100, 1024, 4096), "width": (16, 64, 192, 1024)}
        | {"how": tuple(_SCANS), "dtype": FLOATS},
        rows="batch",
    ),
    "search": Kind(
        search, {"items": (100, 4096, 65_536), "edges": (16, 256, 4096), "dtype": FLOATS}, "items"
    ),
}
