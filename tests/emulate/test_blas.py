"""Emulation computes products without threads of NumPy's BLAS, and leaves it as it was."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import threadpoolctl

from neuronjax.emulate.blas import blas_without_threads


def threads() -> list[int]:
    libraries = threadpoolctl.ThreadpoolController().select(user_api="blas").info()
    return [
        blas["num_threads"] for blas in libraries if "numpy" in Path(blas["filepath"]).parent.name
    ]


def test_threads_come_back_after_the_last_emulation() -> None:
    with threadpoolctl.threadpool_limits(2, user_api="blas"):
        before = threads()
        assert before == [2]
        with ThreadPoolExecutor(1) as pool:
            with blas_without_threads:
                assert pool.submit(threads).result() == [1] * len(before)
                with blas_without_threads:
                    assert threads() == [1] * len(before)
                assert threads() == [1] * len(before)
            assert pool.submit(threads).result() == before
