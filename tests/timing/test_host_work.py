"""What the host does for a program is a part of its time, or is named as left out."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

import neuronjax

TARGET = "trn2.3xlarge"


@pytest.mark.parametrize("count", [1 << 22, 1 << 23, 1 << 24])
def test_sorts_take_time_for_each_comparison(count: int) -> None:
    """numpy and XLA:CPU need 3 to 40 ns for each of n log2 n comparisons on any machine."""
    numbers = jax.ShapeDtypeStruct((count,), jnp.float32)
    estimate = neuronjax.estimate(jnp.sort, numbers, target=TARGET)
    comparisons = count * (count.bit_length() - 1)
    assert 3 * comparisons < estimate.step_ns < 50 * comparisons
    assert any("comparisons" in line for line in estimate.assumed)


def test_other_work_is_named() -> None:
    numbers = jax.ShapeDtypeStruct((1024, 1024), jnp.complex64)
    estimate = neuronjax.estimate(jnp.fft.fft, numbers, target=TARGET)
    assert "fft runs on the host; only its transfers take time" in estimate.assumed
