"""Kernels: functions that are traced with the shapes of their arguments."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar, overload

import jax
import numpy as np

from neuronjax import options
from neuronjax.emulate import core
from neuronjax.emulate.element_types import numpy_dtype
from neuronjax.errors import KernelError, UnsupportedProgramError, did_you_mean, quoted
from neuronjax.jaxlib_api import kernel_calls
from neuronjax.jaxlib_api.tracing import TRACED_FOR, varying_as
from neuronjax.nki import arrays
from neuronjax.nki.calls import Call, call, line_of
from neuronjax.nki.compilation import compiled
from neuronjax.nki.compiled import Compiled
from neuronjax.nki.precision import widened_arrays
from neuronjax.nki.scheduling import Edges, edges_of
from neuronjax.nki.targets import chip_of
from neuronjax.nki.tensor import Tensor
from neuronjax.nki.tracing import is_tracing
from neuronjax.process_settings import seldom_collected

__all__ = ["Kernel", "jit", "simulate"]


R = TypeVar("R")
"""What a kernel returns for JAX arrays, as types: a tensor is a ``jax.Array``."""


@dataclass(frozen=True, repr=False)
class Kernel(Generic[R]):
    """A function marked by `jit`."""

    function: Callable[..., Any]
    #: The programs that run beside each other; none: one, on a physical core of its own.
    grid: tuple[int, ...] = ()
    #: What it is compiled for where a call does not say.
    target: str | None = None
    #: Dependencies between its instructions.
    schedule: Edges = ()

    def __post_init__(self) -> None:
        for name in functools.WRAPPER_ASSIGNMENTS:
            if hasattr(self.function, name):
                object.__setattr__(self, name, getattr(self.function, name))
        object.__setattr__(self, "__wrapped__", self.function)

    def __repr__(self) -> str:
        grid = list(self.grid) if self.grid else ""
        return f"nki.jit({self.function.__name__}){grid}"

    def __getitem__(self, grid: int | tuple[int, ...]) -> Kernel[R]:
        """The kernel with so many programs: `kernel[2](x)` runs on the two physical cores of a
        logical core, which share HBM. ``KernelError``: that is no number."""
        programs = grid if isinstance(grid, tuple) else (grid,)
        if not all(isinstance(count, int) and count > 0 for count in programs):
            raise KernelError(
                f"{self.function.__name__}[{quoted(grid)}] is no number of programs; write as many "
                "as the logical core has physical cores, such as kernel[2]."
            )
        return dataclasses.replace(self, grid=programs)

    def with_schedule(self, schedule: Iterable[object]) -> Kernel[R]:
        """The kernel with dependencies between instructions by their names:
        `[("plus1", "recip"), ("sum", ["plus1", "recip"])]`. ``KernelError``: these are none."""
        return dataclasses.replace(self, schedule=edges_of(schedule))

    def __get__(self, instance: object, owner: type | None = None) -> Kernel[R]:
        """The kernel as a method of an object that has it."""
        if instance is None:
            return self
        return dataclasses.replace(self, function=self.function.__get__(instance, owner))

    def compile(
        self, called: Call, target: str | None = None, ranks: int | None = None
    ) -> Compiled:
        """The program for a call on so many ranks, if that is known, for the `target`, or else for
        the machine that JAX traces for, or else for the kernel's own target, or else for the
        emulated machine. Raises as `trace` does."""
        chip = chip_of(target or TRACED_FOR.value or self.target)
        sdk = options.version(options.load().sdk)
        try:
            with seldom_collected:
                return compiled(self.function, called, chip, sdk, self.grid, ranks, self.schedule)
        except (KernelError, UnsupportedProgramError) as error:
            if not called.scalars:
                raise
            numbers = ", ".join(called.scalars)
            raise type(error)(
                f"{error}\n{numbers} had no dimensions: jax.jit makes an array of a number that is "
                "passed through it. Name it in static_argnames of jax.jit, or give the kernel the "
                "number itself."
            ) from None

    def __call__(self, *arguments: object, **keywords: object) -> R:
        """The kernel's results for JAX arrays, within `jax.jit` or not: the emulator computes them
        when the program runs. Arguments that are no arrays are known when the kernel is traced.
        Within another kernel it is a function like any other.

        Raises as `trace` does, and ``KernelError`` if the kernel writes to an array that it does
        not return.
        """
        if is_tracing():
            return self.function(*arguments, **keywords)
        called = call(self.function, arguments, keywords)
        traced = self.compile(called, ranks=_ranks_of_mesh())
        for position in traced.unreturned():
            raise KernelError(
                f"{self.function.__name__} writes to {called.place_of(position)} and does not "
                "return it; JAX arrays are immutable, so return the tensor."
            )
        memory = jax.tree.map(
            lambda tensor: jax.ShapeDtypeStruct(
                tensor.storage.shape, numpy_dtype(tensor.storage.dtype)
            ),
            traced.returned,
        )
        types, form = jax.tree.flatten(memory)
        given = [arrays.stored(array) for array in called.arrays]
        values = jax.tree.unflatten(form, kernel_calls.call(traced.native, given, types))
        seen = jax.tree.map(arrays.seen_as, traced.returned, values)
        results: R = called.results(varying_as(called.arrays, seen))
        return results

    def trace(self, *arguments: object, target: str | None = None, **keywords: object) -> Compiled:
        """The program for arrays of those shapes and dtypes, and the tensors it returns; `target`
        is the machine, as for `simulate`.

        Arrays may lie in tuples, lists and dicts. What else is among the arguments, such as
        numbers, strings, dtypes and dataclasses, reaches the kernel as it is.

        Raises:
          UnsupportedProgramError: the kernel returns something that is no tensor in HBM, or uses
            what is not built.
          KernelError: the kernel has other parameters, or the chip would refuse an instruction.
          SbufOverflowError, PsumOverflowError: its tiles do not fit.
        """
        return self.compile(call(self.function, arguments, keywords), target)


def _ranks_of_mesh() -> int | None:
    """How many devices run what is being traced; None: it is not within ``jax.shard_map``."""
    mesh = jax.sharding.get_abstract_mesh()
    return mesh.size if mesh.manual_axes else None


_OPTIONS = (
    "mode", "compile_config", "specialization_config", "debug_kernel", "show_compiler_tb",
    "experimental_flags",
)  # fmt: skip
"""Options of `jit` for the Neuron compiler, which have no effect here."""


class Marking(Protocol):
    """What ``@nki.jit(…)`` marks a function with."""

    @overload
    def __call__(self, function: Callable[..., Tensor], /) -> Kernel[jax.Array]: ...
    @overload
    def __call__(
        self, function: Callable[..., tuple[Tensor, ...]], /
    ) -> Kernel[tuple[jax.Array, ...]]: ...
    @overload
    def __call__(self, function: Callable[..., R], /) -> Kernel[R]: ...


@overload
def jit(
    function: Callable[..., Tensor], *, platform_target: str | None = None, **options: object
) -> Kernel[jax.Array]: ...
@overload
def jit(
    function: Callable[..., tuple[Tensor, ...]],
    *,
    platform_target: str | None = None,
    **options: object,
) -> Kernel[tuple[jax.Array, ...]]: ...
@overload
def jit(
    function: Callable[..., R], *, platform_target: str | None = None, **options: object
) -> Kernel[R]: ...
@overload
def jit(
    function: None = None, *, platform_target: str | None = None, **options: object
) -> Marking: ...
def jit(
    function: Callable[..., Any] | None = None,
    *,
    platform_target: str | None = None,
    **options: object,
) -> Any:
    """Marks a function as a kernel, as `@nki.jit` or `@nki.jit(…)`. `platform_target` is what it is
    compiled for, such as `trn2`; options of the Neuron compiler have no effect.

    KernelError: there is no such option, or it is no function.
    """
    for name in options:
        if name not in _OPTIONS:
            hint = did_you_mean(name, ("platform_target", *_OPTIONS))
            raise KernelError(f"nki.jit has no option {name!r}.{hint}")
    if function is None:
        return functools.partial(jit, platform_target=platform_target)
    kernel = kernel_of(function)
    return dataclasses.replace(kernel, target=platform_target or kernel.target)


def kernel_of(function: Callable[..., R]) -> Kernel[R]:
    """A kernel as it is, and a function as one.

    KernelError: it is no function of Python, or one that does not return its results.
    """
    if isinstance(function, Kernel):
        return function
    if isinstance(function, functools.partial):
        kernel = kernel_of(function.func)
        return dataclasses.replace(kernel, function=_completed(kernel.function, function))
    if not hasattr(function, "__code__"):
        raise KernelError(
            f"{quoted(function)} cannot be a kernel; pass a function that is written with def or "
            "lambda."
        )
    if inspect.isgeneratorfunction(function) or inspect.iscoroutinefunction(function):
        raise KernelError(
            f"{line_of(function)}: {function.__name__} is a generator or a coroutine, which "
            "returns no tensor when it is called; use return in the place of yield, and def alone."
        )
    return Kernel(function)


def _completed(
    function: Callable[..., Any], given: functools.partial[object]
) -> Callable[..., Any]:
    """The function with the arguments that are given."""

    @functools.wraps(function)
    def call(*arguments: object, **keywords: object) -> Any:
        return function(*given.args, *arguments, **{**given.keywords, **keywords})

    call.__signature__ = inspect.signature(  # type: ignore[attr-defined]
        functools.partial(function, *given.args, **given.keywords)
    )
    return call


@overload
def simulate(
    kernel: Kernel[jax.Array],
    order: core.Order | None = None,
    target: str | None = None,
    ranks: int | None = None,
    record_to: str | Path | None = None,
    precise_fp: bool | None = None,
) -> Callable[..., np.ndarray]: ...
@overload
def simulate(
    kernel: Kernel[tuple[jax.Array, ...]],
    order: core.Order | None = None,
    target: str | None = None,
    ranks: int | None = None,
    record_to: str | Path | None = None,
    precise_fp: bool | None = None,
) -> Callable[..., tuple[np.ndarray, ...]]: ...
@overload
def simulate(
    kernel: Callable[..., R],
    order: core.Order | None = None,
    target: str | None = None,
    ranks: int | None = None,
    record_to: str | Path | None = None,
    precise_fp: bool | None = None,
) -> Callable[..., R]: ...
def simulate(
    kernel: Callable[..., object],
    order: core.Order | None = None,
    target: str | None = None,
    ranks: int | None = None,
    record_to: str | Path | None = None,
    precise_fp: bool | None = None,
) -> Callable[..., Any]:
    """The kernel, or a function that is not marked as one, as a function of numpy arrays, run by
    the emulator in `order`.

    `target` is an instance, a generation such as `trn2` or a chip; by default it is
    ``NEURON_PLATFORM_TARGET_OVERRIDE`` or else the emulated machine. Arrays that the kernel writes
    to have the new values afterwards.

    `ranks` is given for kernels with collectives: every array then has one more dimension, the
    first, with the array of each rank, and so has every result.

    `record_to` is a file for the run, also if it fails: ``neuronjax replay`` stops it at any line
    and shows its tiles.

    `precise_fp` rounds numbers to BF16 and FP8 where the kernel names these, as the chip does.
    False keeps them in FP32, to tell errors of a kernel from those of its formats; such results are
    FP32, and a kernel that reads their bits as another type is refused with a ``KernelError``. By
    default it is ``NKI_PRECISE_FP``, or else True.
    """
    if not isinstance(order, core.Order | None):
        raise KernelError(
            f"order={quoted(order)} is no order of engines; pass one of neuronjax.emulate.core, "
            "such as DataflowOrder(seed=1)."
        )
    is_precise = options.load().precise_fp if precise_fp is None else precise_fp

    kernel = kernel_of(kernel)

    def simulated(*arguments: object, **keywords: object) -> Any:
        called = call(kernel.function, arguments, keywords)
        if ranks is not None:
            _check_stacked(called, ranks)
        traced = kernel.compile(called if ranks is None else called.of_rank(0), target, ranks)
        _check_ranks(kernel, traced.program.ranks, ranks)
        passed = called.arrays
        for position, array in enumerate(passed):
            arrays.check_values(f"{kernel.function.__name__}({called.place_of(position)})", array)
        for position in traced.changed:
            array = passed[position]
            if not (isinstance(array, np.ndarray) and array.flags.writeable):
                raise KernelError(
                    f"{kernel.function.__name__} writes to {called.place_of(position)}, which is "
                    "immutable; pass a writable NumPy array."
                )
        given = [arrays.stored(np.asarray(array)) for array in passed]
        if not is_precise:
            traced, given = traced.widened(), widened_arrays(given)
        if ranks is None:
            ((returned, written),) = traced.run_in_place([given], order, record_to)
        else:
            by_rank = [[array[rank, ...] for array in given] for rank in range(ranks)]
            results = traced.run_in_place(by_rank, order, record_to)
            returned, written = jax.tree.map(lambda *values: np.stack(values), *results)
        for position, value in written.items():
            passed[position][...] = value
        return called.results(returned)

    return simulated


def _check_ranks(kernel: Kernel, has: int, given: int | None) -> None:
    name = kernel.function.__name__
    if has == 1 and given is not None:
        raise KernelError(f"{name} has no collectives, so it runs on one rank; leave out ranks.")
    if has != (given or 1):
        raise KernelError(
            f"{name} exchanges data between {has} ranks; pass ranks={has} to nki.simulate, and "
            "arrays with a first dimension of that size."
        )


def _check_stacked(called: Call, ranks: int) -> None:
    for position, array in enumerate(called.arrays):
        if not array.shape or array.shape[0] != ranks:
            raise KernelError(
                f"{called.place_of(position)} has the shape {list(array.shape)}; with "
                f"ranks={ranks} its first dimension is {ranks}, one entry for each rank."
            )
