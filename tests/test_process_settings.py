"""The collector's thresholds: raised while anybody asks, and as they were after the last."""

from __future__ import annotations

import gc
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from neuronjax.process_settings import SELDOM, seldom_collected


@pytest.mark.parametrize("before", [(700, 10, 10), (0, 10, 10), (10**6, 5, 5)])
def test_thresholds_come_back_after_the_last_of_several_threads(
    before: tuple[int, int, int],
) -> None:
    inside = threading.Barrier(3)
    outside = threading.Barrier(2)
    expected = (max(before[0], SELDOM) if before[0] else 0, *before[1:])

    def patient(waits: bool) -> tuple[int, int, int]:
        with seldom_collected:
            inside.wait(10)
            if waits:
                outside.wait(10)
            return gc.get_threshold()

    was = gc.get_threshold()
    gc.set_threshold(*before)
    try:
        with ThreadPoolExecutor(2) as pool:
            first, last = pool.submit(patient, False), pool.submit(patient, True)
            inside.wait(10)
            assert first.result(10) == expected
            outside.wait(10)
            assert last.result(10) == expected
        assert gc.get_threshold() == before
    finally:
        gc.set_threshold(*was)


def test_thresholds_come_back_after_an_error() -> None:
    before = gc.get_threshold()
    with pytest.raises(ValueError, match="within"), seldom_collected:
        raise ValueError("within")
    assert gc.get_threshold() == before
