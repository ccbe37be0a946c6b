"""Emulation computes products without threads of BLAS, and leaves BLAS as it was."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import threadpoolctl

from neuronjax.emulate.blas import blas_without_threads


def threads() -> list[int]:
    libraries = threadpoolctl.ThreadpoolController().select(user_api="blas")
    return [library["num_threads"] for library in libraries.info()]


def test_threads_come_back_after_the_last_emulation() -> None:
    with threadpoolctl.threadpool_limits(2, user_api="blas"):
        before = threads()
        with ThreadPoolExecutor(1) as pool:
            with blas_without_threads:
                assert pool.submit(threads).result() == [1] * len(before)
                with blas_without_threads:
                    assert threads() == [1] * len(before)
                assert threads() == [1] * len(before)
            assert pool.submit(threads).result() == before
