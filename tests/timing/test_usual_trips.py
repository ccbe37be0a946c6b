"""Loops whose trips data decides are timed by the trips that random data needs."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import neuronjax

CASES = {
    # rows, segments, whether they are sorted -> rounds of 128 rows
    "drawn from a thousand": (2048, 1000, False, 2),
    "drawn from many": (2048, 100_000, False, 1),
    "drawn from few": (2048, 16, False, 12),
    "one": (2048, 1, False, 128),
    "sorted": (2048, 64, True, 32),
}


@pytest.mark.parametrize("name", CASES)
def test_maxima_of_segments_are_timed_for_random_rows(name: str) -> None:
    rows, segments, is_sorted, rounds = CASES[name]
    estimate = neuronjax.estimate(
        lambda x, s: jax.ops.segment_max(x, s, segments, indices_are_sorted=is_sorted),
        jax.ShapeDtypeStruct((rows, 64), jnp.float32),
        jax.ShapeDtypeStruct((rows,), jnp.int32),
        target="trn2.3xlarge",
    )
    assert [text.split(": ")[1] for text in estimate.assumed] == [f"{rounds} trips"]
    if not is_sorted:
        drawn = np.random.default_rng(0).integers(0, segments, (500, 128))
        most = [np.unique(row, return_counts=True)[1].max() for row in drawn]
        assert abs(np.mean(most) - rounds) <= 1.5
