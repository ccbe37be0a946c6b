"""The paged cache against a forward pass over whole texts."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from models.layers.paged_cache import SCRATCH_BLOCK, PagedCache, Pages, Rows
from models.parameters import merge
from tests.models.test_decoder import build, run

BLOCK_SIZE, BLOCKS_PER_ROW = 4, 6
# (row, first new token, new tokens) of the rows of each batch, in order of the batches
SCHEDULES: dict[str, Sequence[Sequence[tuple[int, int, int]]]] = {
    "chunks": [[(0, 0, 5), (1, 0, 2)], [(1, 2, 7), (0, 5, 9)], [(0, 14, 7), (1, 9, 4)]],
    "token by token": [
        [(0, position, 1), *([(1, position, 1)] if position < 13 else [])] for position in range(21)
    ],
}


@pytest.mark.parametrize("windowed", [False, True])
@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES.keys())
def test_rows_in_pages_see_what_whole_texts_see(
    devices: list[jax.Device], schedule: Sequence[Sequence[tuple[int, int, int]]], windowed: bool
) -> None:
    changes = {"sliding_window": 5, "sliding_layers": (0,)} if windowed else {}
    _, graph, parameters = build(**changes)
    parameters = jax.device_put(parameters, devices[0])
    rng = np.random.default_rng(3)
    texts = rng.integers(0, 32, (2, 21)).astype(np.int32)
    # Blocks lie scattered, and the last of them is shared by nobody.
    tables = (1 + rng.permutation(2 * BLOCKS_PER_ROW)).reshape(2, BLOCKS_PER_ROW)
    step = jax.jit(lambda weights, *inputs: merge(graph, weights).extend_pages(*inputs))
    logits = jax.jit(lambda weights, x: merge(graph, weights).logits_of(x))
    pages = merge(graph, parameters).init_pages(1 + 2 * BLOCKS_PER_ROW, BLOCK_SIZE)
    pages = jax.device_put(pages, devices[0])
    whole = run(graph, parameters, texts)
    width = 1 + max(count for batch in schedule for _, _, count in batch)
    for batch in schedule:  # with a token of padding at least, and a row of it
        tokens = np.full((3, width), 7, np.int32)
        places = np.zeros((3, 2), np.int32)
        table = np.full((3, BLOCKS_PER_ROW), SCRATCH_BLOCK, np.int32)
        for index, (row, start, count) in enumerate(batch):
            tokens[index, :count] = texts[row, start : start + count]
            places[index] = start, count
            needed = -(-(start + count) // BLOCK_SIZE)
            table[index, :needed] = tables[row, :needed]
        outputs, pages = step(parameters, tokens, pages, Rows(table, places[:, 0], places[:, 1]))
        got = logits(parameters, outputs)
        for index, (row, start, count) in enumerate(batch):
            expected = whole[row, start + count - 1]
            np.testing.assert_allclose(got[index], expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("dtype", ["float8_e4m3", "float8_e4m3fn", "float8_e5m2"])
def test_pages_of_fp8_hold_the_nearest_scaled_numbers(dtype: str) -> None:
    """Keys with a scale and values without: what exceeds the range becomes its largest number."""
    rng = np.random.default_rng(5)
    keys, values = rng.normal(size=(2, 2, 6, 1, 4)).astype(np.float32) * 30
    values[0, 0] = 1e6
    rows = Rows(
        np.array([[1, 2], [4, 3]], np.int32), np.zeros(2, np.int32), np.full(2, 6, np.int32)
    )
    scale = jnp.full(1, 0.37, jnp.float32)
    cache = PagedCache(Pages.empty(5, BLOCK_SIZE, 1, 4, dtype), rows, (scale, jnp.ones(1)))
    read = cache.write(jnp.asarray(keys), jnp.asarray(values), 0).read(jnp.float32)
    form = getattr(ml_dtypes, dtype)
    largest = float(ml_dtypes.finfo(form).max)

    def stored(x: np.ndarray) -> np.ndarray:
        return np.clip(x, -largest, largest).astype(form).astype(np.float32)

    expected = stored(keys / np.float32(0.37)) * np.float32(0.37)
    np.testing.assert_allclose(read.keys[:, :6], expected, rtol=1e-6)
    np.testing.assert_array_equal(read.values[:, :6], stored(values))
