"""Rows of tables that are read, written and counted by their numbers."""

from __future__ import annotations

from tests.conformance.real_sizes.kind import FLOATS, WORDS, YES_OR_NO, Array, Kind, Written, need

_TABLE = (1000, 32_000, 128_256, 262_144, 1_000_000)
_ACROSS = (1, 4, 64, 100, 256, 768, 1024, 4096)
_ROWS = (1, 7, 128, 1000, 4096, 16_384)


def embedding(rows: int, words: int, width: int, gradient: bool, dtype: str) -> Written:
    arrays = {"table": Array((words, width), dtype), "at": Array((rows,), "int32")}
    result = Array((rows, width), dtype)
    return Written(
        arguments=arrays,
        body="return table[at]",
        wrt=("table",) if gradient else (),
        least_bytes=None if gradient else 2 * result.nbytes + 4 * rows,
    )


def embedding_bag(rows: int, words: int, width: int, each: int, dtype: str) -> Written:
    """The sums of several rows, as recommenders look up."""
    arrays = {"table": Array((words, width), dtype), "at": Array((rows, each), "int32")}
    read = Array((rows * each, width), dtype)
    return Written(
        arguments=arrays,
        body="return table[at].sum(1)",
        least_bytes=read.nbytes + read.nbytes // each + 4 * rows * each,
    )


def table_update(rows: int, words: int, width: int, how: str, donated: bool, dtype: str) -> Written:
    arrays = {
        "table": Array((words, width), dtype),
        "at": Array((rows,), "int32"),
        "x": Array((rows, width), dtype),
    }
    x = arrays["x"].nbytes
    return Written(
        arguments=arrays,
        body=f"return table.at[at].{how}(x)",
        donated=("table",) if donated else (),
        least_bytes=(2 * x if donated else 2 * arrays["table"].nbytes) + 4 * rows,
    )


def sums_of_segments(rows: int, segments: int, width: int, how: str, dtype: str) -> Written:
    arrays = {"x": Array((rows, width), dtype), "at": Array((rows,), "int32")}
    body = f"return jax.ops.segment_{how}(x, at, num_segments={segments})"
    return Written(arguments=arrays, body=body)


def counts(items: int, bins: int, form: str) -> Written:
    forms = {
        "bincount": f"return jnp.bincount(x, length={bins})",
        "one_hot": f"return jax.nn.one_hot(x, {bins}, dtype='int32').sum(0)",
        "histogram": "x = x.astype('float32')\n"
        f"return jnp.histogram(x, bins={bins}, range=(0, {bins}))[0]",
    }
    need(form != "one_hot" or items * bins <= 1 << 30)
    return Written(arguments={"x": Array((items,), "int32")}, body=forms[form])


def along_rows(rows: int, width: int, each: int, dtype: str) -> Written:
    """Elements of each row by numbers of its own."""
    arrays = {"x": Array((rows, width), dtype), "at": Array((rows, each), "int32")}
    result = Array((rows, each), dtype)
    return Written(
        arguments=arrays,
        body="return jnp.take_along_axis(x, at, 1)",
        least_bytes=2 * result.nbytes + arrays["at"].nbytes,
    )


def permuted_rows(rows: int, width: int, dtype: str) -> Written:
    arrays = {"x": Array((rows, width), dtype), "at": Array((rows,), "int32")}
    return Written(arguments=arrays, body="return x[at]")


def one_hot_rows(rows: int, words: int, dtype: str) -> Written:
    arrays = {"at": Array((rows,), "int32")}
    return Written(arguments=arrays, body=f"return jax.nn.one_hot(at, {words}, dtype='{dtype}')")


def pages(batch: int, blocks: int, each: int, width: int, dtype: str) -> Written:
    """The blocks of a paged cache that sequences have, gathered."""
    arrays = {
        "cache": Array((blocks, 16, 8, width), dtype),
        "at": Array((batch, each), "int32"),
    }
    read = Array((batch, each, 16, 8, width), dtype)
    return Written(
        arguments=arrays,
        body=f"return cache[at].reshape({batch}, {each * 16}, 8, {width})",
        least_bytes=2 * read.nbytes,
    )


def window(rows: int, width: int, of: int, update: bool, donated: bool, dtype: str) -> Written:
    """Rows from a place that data tells, read or written."""
    need(of <= rows)
    arrays = {"x": Array((rows, width), dtype), "at": Array((), "int32")}
    part = Array((of, width), dtype)
    if not update:
        body = f"return lax.dynamic_slice_in_dim(x, at, {of}, 0)"
        return Written(arguments=arrays, body=body, least_bytes=2 * part.nbytes)
    arrays["y"] = part
    return Written(
        arguments=arrays,
        body="return lax.dynamic_update_slice_in_dim(x, y, at, 0)",
        donated=("x",) if donated else (),
        least_bytes=2 * part.nbytes if donated else 2 * arrays["x"].nbytes,
    )


KINDS = {
    "embedding": Kind(
        embedding,
        {"rows": _ROWS, "words": _TABLE, "width": _ACROSS, "gradient": YES_OR_NO, "dtype": FLOATS},
        rows="rows",
    ),
    "embedding_bag": Kind(
        embedding_bag,
        {"rows": _ROWS[:5], "words": _TABLE, "width": _ACROSS[:6], "each": (2, 10, 32)}
        | {"dtype": FLOATS},
        rows="rows",
    ),
    "table_update": Kind(
        table_update,
        {"rows": _ROWS, "words": _TABLE, "width": _ACROSS, "how": ("set", "add", "max")}
        | {"donated": YES_OR_NO, "dtype": FLOATS},
        rows="rows",
    ),
    "sums_of_segments": Kind(
        sums_of_segments,
        {"rows": _ROWS, "segments": (8, 64, 1000, 10_000), "width": _ACROSS}
        | {"how": ("sum", "max"), "dtype": FLOATS},
        rows="rows",
    ),
    "counts": Kind(
        counts,
        {"items": (100, 4096, 65_536, 1 << 20, 1 << 22), "bins": (8, 64, 256, 10_000)}
        | {"form": ("bincount", "one_hot", "histogram")},
        rows="items",
    ),
    "along_rows": Kind(
        along_rows,
        {"rows": _ROWS[:5], "width": (64, 1000, 32_000, 128_256), "each": (1, 8, 64)}
        | {"dtype": FLOATS},
        rows="rows",
    ),
    "permuted_rows": Kind(
        permuted_rows, {"rows": (*_ROWS, 65_536), "width": _ACROSS, "dtype": FLOATS}, "rows"
    ),
    "one_hot_rows": Kind(one_hot_rows, {"rows": _ROWS, "words": WORDS, "dtype": FLOATS}, "rows"),
    "pages": Kind(
        pages,
        {"batch": (1, 8, 32), "blocks": (1000, 8192, 32_768), "each": (4, 64, 256)}
        | {"width": (64, 128), "dtype": FLOATS},
        rows="batch",
    ),
    "window": Kind(
        window,
        {"rows": (128, 4096, 65_536, 1_000_000), "width": _ACROSS, "of": (1, 8, 128, 1000)}
        | {"update": YES_OR_NO, "donated": YES_OR_NO, "dtype": FLOATS},
    ),
}
