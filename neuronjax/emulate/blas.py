"""How NumPy computes the products of tiles."""

from __future__ import annotations

import functools

import threadpoolctl

from neuronjax.process_settings import ProcessSetting, Restore


@functools.cache
def _blas() -> threadpoolctl.ThreadpoolController:
    return threadpoolctl.ThreadpoolController().select(user_api="blas")


def _compute_alone() -> Restore:
    restore: Restore = _blas().limit(limits=1).restore_original_limits
    return restore


blas_without_threads = ProcessSetting(_compute_alone)
"""A context in which NumPy's matrix products start no threads.

Those of a tile take a tenth of a millisecond. Where other processes keep the cores busy, waiting
for a second thread makes them take a hundred times as long.
"""
