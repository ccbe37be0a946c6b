"""Who starts a kernel's transfers, and who makes their descriptors (nki.isa.dma_copy, dge_mode)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from neuronjax import nki
from neuronjax.errors import UnsupportedProgramError
from neuronjax.machine.specs import Engine
from neuronjax.nki import isa as nisa
from neuronjax.nki import language as nl
from neuronjax.nki.tensor import Tensor
from neuronjax.program.dma import DmaCopy
from neuronjax.program.operators import DescriptorMode
from neuronjax.program.walk import instructions
from tests.nki.kernels import tile

X = np.random.default_rng(0).standard_normal((1024, 512), np.float32)
MODES = {
    "unknown": ({}, Engine.SYNC, DescriptorMode.STATIC),
    "none": ({"dge_mode": nisa.dge_mode.none}, Engine.SYNC, DescriptorMode.STATIC),
    "none by its number": ({"dge_mode": 3}, Engine.SYNC, DescriptorMode.STATIC),
    "software": ({"dge_mode": nisa.dge_mode.swdge}, Engine.GPSIMD, DescriptorMode.SOFTWARE),
    "hardware": ({"dge_mode": nisa.dge_mode.hwdge}, Engine.SYNC, DescriptorMode.HARDWARE),
    "hardware of sync": (
        {"dge_mode": nisa.dge_mode.hwdge, "engine": nisa.engine.sync},
        Engine.SYNC,
        DescriptorMode.HARDWARE,
    ),
    "hardware of scalar": (
        {"dge_mode": nisa.dge_mode.hwdge, "engine": nisa.engine.scalar},
        Engine.SCALAR,
        DescriptorMode.HARDWARE,
    ),
}
"""Arguments of `dma_copy` for a load -> its starter and its descriptors."""


@nki.jit
def loaded_so(x: Tensor, arguments: dict[str, Any]) -> Tensor:
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    for first in nl.affine_range(0, x.shape[0], 128):
        rows, data, result = nl.ds(first, 128), tile((128, 512)), tile((128, 512))
        nisa.dma_copy(dst=data, src=x[rows], **arguments)
        nisa.tensor_scalar(result, data, nl.multiply, 2.0)
        nisa.dma_copy(dst=out[rows], src=result)
    return out


@pytest.mark.parametrize("mode", MODES)
def test_starters_and_descriptors(mode: str) -> None:
    arguments, engine, descriptors = MODES[mode]
    program = loaded_so.trace(X, arguments).program
    load, store, *_ = (node for _, node in instructions(program) if isinstance(node, DmaCopy))
    assert (load.engine, load.descriptors) == (engine, descriptors)
    assert (store.engine, store.descriptors) == (Engine.GPSIMD, DescriptorMode.STATIC)
    assert load.queue != store.queue
    np.testing.assert_array_equal(nki.simulate(loaded_so)(X, arguments), 2 * X)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"engine": nisa.engine.scalar}, "dge_mode=unknown cannot be started by engine=scalar"),
        (
            {"engine": nisa.engine.vector, "dge_mode": nisa.dge_mode.hwdge},
            r"test_transfers.py:\d+: .*dge_mode=hwdge cannot be started by engine=vector",
        ),
        (
            {"engine": nisa.engine.sync, "dge_mode": nisa.dge_mode.swdge},
            "give dge_mode=hwdge and engine sync or scalar",
        ),
        (
            {"dge_mode": 7},
            r"test_transfers.py:\d+: dge_mode=7 does not exist; pass one of nisa.dge",
        ),
    ],
)
def test_engine_is_for_descriptors_of_the_hardware(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedProgramError, match=message):
        loaded_so.trace(X, arguments)


def test_loads_do_not_wait_for_stores() -> None:
    """Tiles overlap: eight of them take less than thrice as long as one."""
    one, eight = (nki.benchmark(loaded_so, X[: 128 * count], {}).total_ns for count in (1, 8))
    assert one < eight < 3 * one
