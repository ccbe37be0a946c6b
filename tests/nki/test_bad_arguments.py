"""What kernels and their instructions are given by mistake: an error at the line, with a remedy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from neuronjax import nki
from neuronjax.errors import NeuronError
from neuronjax.nki import collectives as ncc
from neuronjax.nki import isa as nisa
from neuronjax.nki import language as nl
from neuronjax.nki.tensor import Tensor
from tests.nki.kernels import loaded, stored, tile

X = np.ones((128, 8), np.float32)
HERE = r"test_bad_arguments.py:\d+: "

CALLS: dict[str, tuple[Callable[[Tensor, Tensor], Any], str]] = {
    "near parameter": (
        lambda x, t: nisa.tensor_scalar(dst=t, data=t, op=nl.add, operand0=1.0),
        "unexpected keyword argument 'op'. Did you mean op0?",
    ),
    "near parameter of nl": (lambda x, t: nl.exp(t, dtyp=nl.float32), "'dtyp'. Did you mean dtype"),
    "near parameter of a loop": (lambda x, t: nl.affine_range(stp=3), "'stp'. Did you mean st.p"),
    "near parameter of an exchange": (
        lambda x, t: ncc.all_reduce(src=[x], dsts=[x]),
        r"nki.collectives.all_reduce\(srcs, .*'src'. Did you mean srcs",
    ),
    "near engine": (
        lambda x, t: nisa.tensor_copy(t, t, engine=nisa.engine.gpsmd),
        "nki.isa.engine has no 'gpsmd'. Did you mean gpsimd",
    ),
    "number for a tile": (lambda x, t: nisa.memset(3, 0.0), "no dst=3; pass a tensor"),
    "list for a tile": (lambda x, t: nisa.dma_copy([t], x), "no dst=.*; pass a tensor"),
    "nothing for a tile": (lambda x, t: nisa.dma_copy(None, x), "no dst=None; pass a tensor"),
    "nothing for an operator": (
        lambda x, t: nisa.tensor_tensor(t, t, t, None),
        "no op=None; pass an operator of nki.language",
    ),
    "nothing for a number": (lambda x, t: nisa.memset(t, None), "no value=None; pass a number"),
    "tile for a number": (lambda x, t: nisa.memset(t, t), "no value=a tensor .*pass a number"),
    "register for a tile": (
        lambda x, t: nisa.tensor_copy(t, nisa.register_alloc(0)),
        "no src=VirtualRegister.*pass a tensor",
    ),
    "tile for a register": (lambda x, t: nisa.register_load(t, t), "no dst=.*pass a register"),
    "numbers for a register": (
        lambda x, t: nisa.register_alloc(t[0:1, 0:1]),
        "src of register_load is .*float32.*have 32-bit integers",
    ),
    "numbers for an offset": (
        lambda x, t: x.ap([[1, 1], [1, 1]], scalar_offset=t[0:1, 0:1]),
        "scalar_offset is .*float32.*have 32-bit integers",
    ),
    "array of the host": (lambda x, t: nisa.dma_copy(t, X), "no src=.*or.* nl.shared_constant"),
    "string for a number": (
        lambda x, t: nisa.tensor_scalar(t, t, nl.add, "1"),
        "no operand0='1'; pass a tensor or a number",
    ),
    "huge number": (lambda x, t: nisa.memset(t, 10**400), "beyond float32; pass a smaller"),
    "far axis": (lambda x, t: nisa.tensor_reduce(t, nl.add, t, axis=5), "cannot reduce axis=5"),
    "named axis": (lambda x, t: nisa.tensor_reduce(t, nl.add, t, axis="x"), "reduce axis='x'"),
    "no axis": (lambda x, t: nisa.tensor_reduce(t, nl.add, t, axis=None), "reduce axis=None"),
    "flat pattern": (lambda x, t: nisa.iota(t, [1, 8]), r"\[1, 8\] is no pattern; pass \[step"),
    "no pattern": (lambda x, t: nisa.affine_select(t, 5, 1, t, 0.0), "5 is no pattern"),
    "tile for a mask": (lambda x, t: nisa.nc_stream_shuffle(t, t, t), "no shuffle_mask=a tensor"),
    "priority of another chip": (
        lambda x, t: nisa.dma_copy(t, x, priority=1),
        r"priorities of transfers on NeuronCore-v3; allowed: NeuronCore-v4",
    ),
    "named start": (lambda x, t: x[nl.ds("a", 3)], r"nl?.*ds\(start, size\) does not take these"),
    "no bound": (lambda x, t: nl.affine_range(None), "None cannot be a loop bound"),
    "no body": (
        lambda x, t: nl.fori_loop(0, nisa.register_alloc(2), None),
        "body_fun takes one register: None is no function",
    ),
    "body of nothing": (
        lambda x, t: nl.fori_loop(0, nisa.register_alloc(2), lambda: None),
        "body_fun takes one register: too many positional arguments",
    ),
    "named program": (lambda x, t: nl.program_id("a"), r"the grid \[\] has no axis 'a'"),
    "missing file": (lambda x, t: nl.shared_constant("/none.npy"), "shared_constant.*No such file"),
    "wide constant": (
        lambda x, t: nl.shared_constant(np.ones((4, 4))),
        "'float64' is not an element type",
    ),
    "tile without dimensions": (lambda x, t: nl.zeros((), nl.float32), "one dimension at least"),
    "numbered name": (lambda x, t: nl.ndarray((4, 4), nl.float32, name=5), "name=5 is no name"),
    "number as an address": (
        lambda x, t: nl.ndarray((4, 4), nl.float32, address=5),
        r"address=5 is no place of a tile; pass .*\(0, 1024\)",
    ),
    "function of jax": (lambda x, t: jnp.exp(t), "is no array of numpy.*nki.language"),
    "operator of an exchange": (
        lambda x, t: ncc.all_reduce([x], [x], ncc.ReplicaGroup([[0, 1]]), nl.multiply),
        "takes no op=nl.multiply; pass nl.add",
    ),
}


@pytest.mark.parametrize("case", CALLS)
def test_of_instructions(case: str) -> None:
    act, words = CALLS[case]

    def kernel(x: Tensor) -> Tensor:
        act(x, loaded(x))
        return stored(loaded(x))

    with pytest.raises(NeuronError, match=f"(?s){HERE}.*{words}"):
        nki.simulate(kernel)(X)


def copied(x: Tensor) -> Tensor:
    return stored(loaded(x))


def of_a_scalar(x: Tensor) -> Tensor:
    return stored(tile(x.shape))


ARGUMENTS: dict[str, tuple[tuple[Any, ...], str]] = {
    "too many": ((X, X), r"copied\(.*\).*: too many positional arguments"),
    "none": ((), r"copied\(.*\).*: missing a required argument: 'x'"),
    "wide": ((X.astype(np.float64),), r"copied\(x\): 'float64' is not an element type.*astype"),
    "complex": ((X.astype(complex),), "'complex128' is not an element type"),
    "objects": ((np.array([[object()]]),), "'object' is not an element type"),
    "strings": ((np.array([["a"]]),), "is not an element type"),
    "empty": ((np.zeros((3, 0), np.float32),), r"copied\(x\): the array has the shape \[3, 0\]"),
    "mixed names": (({1: X, "a": X},), "no tuples, lists and dicts of arrays"),
}


@pytest.mark.parametrize("case", ARGUMENTS)
def test_of_kernels(case: str) -> None:
    arguments, words = ARGUMENTS[case]
    for door in (nki.simulate(copied), nki.jit(copied)):
        with pytest.raises(NeuronError, match=f"(?s){HERE}.*{words}"):
            door(*arguments)


def test_what_has_no_values() -> None:
    simulated = nki.simulate(copied)
    with pytest.raises(NeuronError, match=r"copied\(x\) is a ShapeDtypeStruct.*kernel.trace"):
        simulated(jax.ShapeDtypeStruct((128, 8), jnp.float32))
    with pytest.raises(NeuronError, match=r"copied\(x\) is a .*Tracer.*call the kernel itself"):
        jax.jit(simulated)(X)
    with pytest.raises(NeuronError, match=r"copied\(x\) is a masked array; pass array.filled"):
        simulated(np.ma.masked_array(X, mask=X > 0))


def yielding(x: Tensor) -> Any:
    yield stored(loaded(x))


async def awaited(x: Tensor) -> Any:
    return stored(loaded(x))


KERNELS: dict[Any, str] = {
    yielding: "yielding is a generator or a coroutine.*use return",
    awaited: "awaited is a generator or a coroutine",
    len: "<built-in function len> cannot be a kernel; pass a function",
    3: "3 cannot be a kernel",
}


@pytest.mark.parametrize("kernel", KERNELS, ids=["generator", "coroutine", "of Python", "number"])
def test_what_is_no_kernel(kernel: Any) -> None:
    for door in (nki.jit, nki.simulate):
        with pytest.raises(NeuronError, match=KERNELS[kernel]):
            door(kernel)


RETURNED: dict[str, Callable[[Tensor], Any]] = {
    "a tile": lambda x: loaded(x),
    "a number": lambda x: 3,
    "a part": lambda x: stored(loaded(x))[0:3],
    "more": lambda x: {"a": stored(loaded(x)), "b": 3},
    "a register": lambda x: nisa.register_alloc(3),
}


@pytest.mark.parametrize("case", RETURNED)
def test_what_a_kernel_cannot_return(case: str) -> None:
    with pytest.raises(NeuronError, match=f"{HERE}.*returns .*; return whole tensors"):
        nki.simulate(RETURNED[case])(X)


def test_lambdas_and_marked_kernels_are_kernels() -> None:
    np.testing.assert_array_equal(nki.simulate(lambda x: copied(x))(X), X)
    np.testing.assert_array_equal(nki.simulate(nki.jit(nki.jit(copied)))(X), X)


def test_errors_of_the_kernel_are_its_own(tmp_path: Path) -> None:
    """They have their type, and the line where they were raised is the last."""

    def kernel(x: Tensor) -> Tensor:
        raise ZeroDivisionError("no rows")

    with pytest.raises(ZeroDivisionError, match="no rows") as raised:
        nki.simulate(kernel)(X)
    assert raised.traceback[-1].path == Path(__file__)


def test_gradients_that_a_kernel_does_not_have() -> None:
    kernel = nki.jit(copied)
    for derived in (jax.grad(lambda x: kernel(x).sum()), lambda x: jax.jvp(kernel, (x,), (x,))):
        with pytest.raises(NeuronError, match=r"copied has no derivative.*jax.custom_vjp"):
            jax.jit(derived)(jnp.asarray(X))


@pytest.mark.parametrize("grid", [0, -1, 2.0, "2", None, (2, 0)], ids=str)
def test_what_is_no_number_of_programs(grid: Any) -> None:
    with pytest.raises(NeuronError, match=r"copied\[.*\] is no number of programs; write"):
        nki.jit(copied)[grid]


def test_what_is_no_order_and_no_sweep() -> None:
    with pytest.raises(NeuronError, match="order='dataflow' is no order of engines; pass one of"):
        nki.simulate(copied, order="dataflow")(X)  # type: ignore[arg-type]
    over: Any
    for over in ({"x": 3}, {"x": "ab"}, {}, {"x": []}, 3):
        with pytest.raises(NeuronError, match="copied: `over` has no values; pass lists by"):
            nki.sweep(copied, over=over)


@pytest.mark.parametrize("name", ["trace", "baremetal", "simulate_kernel"])
def test_doors_of_older_versions_name_their_successors(name: str) -> None:
    with pytest.raises(NeuronError, match=rf"nki.{name} was removed from NKI: .*kernel"):
        getattr(nki, name)
