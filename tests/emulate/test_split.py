"""Two physical cores: tiles of their own, one HBM, and nothing in order between them."""

from __future__ import annotations

import numpy as np
import pytest

from neuronjax.emulate.core import DataflowOrder, Emulation, Order, run
from neuronjax.errors import RaceError, UninitialisedError
from neuronjax.program.program import Program
from neuronjax.program.text import parse

X = np.arange(32, dtype=np.float32)
ORDERS: tuple[Order | None, ...] = (
    None, DataflowOrder(0), DataflowOrder(1), DataflowOrder(0, adversarial=True),
)  # fmt: skip


def program(first: str, second: str, after: str = "") -> Program:
    """Kernels on two cores, whose tiles have one address, and one behind them."""

    def kernel(name: str, body: str) -> str:
        return (
            f'kernel "{name}" {{ semaphore !loaded\nsbuf %{name} : float32[1, 16] @0\n'
            f"{body.replace('TILE', name)} }}"
        )

    behind = kernel("after", after) if after else ""
    return parse(
        'program "p" target trainium2 lnc 2 {\nhbm %x : float32[32] argument @0\n'
        "hbm %y : float32[32] result @128\n"
        f'split "k" {{ {kernel("one", first)}\n{kernel("two", second)} }}\n{behind} }}'
    )


def half(at: int) -> str:
    """Sixteen elements through a tile."""
    return (
        f"dma_copy dst=%TILE[0; 1:16] src=%x[{at}; 1:16] signals=(!loaded += 16)\n"
        f"dma_copy dst=%y[{at}; 1:16] src=%TILE[0; 1:16] waits=(!loaded >= 16) queue=1"
    )


@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_each_core_has_its_tiles_and_semaphores(order: Order | None) -> None:
    """The tiles have one address, the semaphores one name."""
    (found,) = run(program(half(0), half(16)), [{"x": X}], order=order)
    assert found["y"].tolist() == X.tolist()


def test_memories_can_be_looked_into() -> None:
    emulation = Emulation(program(half(0), half(16)), [{"x": X}])
    emulation.run()
    assert emulation.buffer("one/one").tolist() == [X[:16].tolist()]
    assert emulation.buffer("two/two").tolist() == [X[16:].tolist()]


@pytest.mark.parametrize("order", ORDERS[1:], ids=str)
def test_cores_race_in_hbm(order: Order) -> None:
    """Where their bytes differ, and nowhere else."""
    same, other = half(8), half(8).replace("%x[8", "%x[0")
    with pytest.raises(UninitialisedError, match="y"):  # its end
        run(program(half(0), same), [{"x": X}], order=order)
    with pytest.raises(RaceError, match="core 1"):
        run(program(half(0), other), [{"x": X}], order=order)


@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_what_follows_finds_both_halves(order: Order | None) -> None:
    """The end of a split is a barrier: a kernel on the first core reads what the second wrote."""
    after = (
        "dma_copy dst=%TILE[0; 1:16] src=%y[16; 1:16] signals=(!loaded += 16)\n"
        "dma_copy dst=%y[0; 1:16] src=%TILE[0; 1:16] waits=(!loaded >= 16) queue=1"
    )
    (found,) = run(program(half(0), half(16), after), [{"x": X}], order=order)
    assert found["y"].tolist() == [*X[16:], *X[16:]]


def test_a_core_cannot_read_the_tiles_of_another() -> None:
    with pytest.raises(UninitialisedError):
        run(program(half(0), "dma_copy dst=%y[16; 1:16] src=%TILE[0; 1:16]"), [{"x": X}])
