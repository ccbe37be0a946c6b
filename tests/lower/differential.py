"""Programs lowered and emulated, against XLA on the CPU: the same values from both.

`lowered` makes a `Program` of a jax function, `emulated` runs it. `check` compares with XLA:CPU:
bit by bit, or within what a sum in another order or another last digit of a function may differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import jax
import ml_dtypes
import numpy as np
from jax._src.lib import xla_client
from jaxlib.xla_client import CompileOptions

from neuronjax.compiler import compile_program
from neuronjax.emulate.core import DataflowOrder, Order, run
from neuronjax.engine_compiler import prices_of
from neuronjax.hlo import module as hlo
from neuronjax.hlo.module import TOKEN
from neuronjax.host.client import HostClient
from neuronjax.jaxlib_api import mlir
from neuronjax.legalize.policy import policy_of
from neuronjax.lower.passes import Setting, arrange, complete, lower
from neuronjax.lower.tuning import DEFAULT, Tuning
from neuronjax.lower.values.storage import restored, stored
from neuronjax.machine.chips import CHIPS
from neuronjax.options import Options
from neuronjax.program.control import Host
from neuronjax.program.program import Program, Target
from neuronjax.program.walk import instructions
from tests.quick_compile import QUICK_COMPILE

CHIP = "trainium2"


@dataclass(frozen=True)
class Tolerance:
    """Differences allowed: units in the last place of FP32, or relative to the largest value.

    `roundings` are those of partial sums, as large as the largest value, to a type shorter than
    FP32: XLA:CPU makes them, engines do not.
    """

    ulps: float = 0
    relative: float = 0
    roundings: float = 0


EXACT = Tolerance()
FUNCTION = Tolerance(ulps=4)
SUM = Tolerance(relative=1e-5)


def lowered(
    code: bytes, ranks: int = 1, chip: str = CHIP, lnc: int = 1, tuning: Tuning = DEFAULT
) -> Program:
    """The program of StableHLO text or bytecode."""
    with hlo.context():
        module = hlo.load(code)
        setting = Setting(
            target=Target(chip, lnc),
            ranks=ranks,
            donations=hlo.donations(module),
            prices=prices_of,
            tuning=tuning,
        )
        return lower(module, setting)


def completed(program: Program, prices: Any = prices_of, verify_passes: bool = True) -> Program:
    """A lowered program as a core runs it; what each pass leaves is checked."""
    setting = Setting(target=program.target, prices=prices, verify_passes=verify_passes)
    return complete(arrange(program, setting), setting)


def lowered_function(
    function: Callable[..., Any], *arguments: Any, tuning: Tuning = DEFAULT
) -> tuple[Program, bytes]:
    """The program of a jax function, and what it was lowered from: its StableHLO as users' comes.

    Platform `cpu` would get operations of CHLO, which JAX sends to no plugin.
    """
    code = sent(jax.jit(function).trace(*arguments))
    return lowered(code, tuning=tuning), code


def sent(traced: Any, numerics: str = "ieee") -> bytes:
    """The program of one core as lowering gets it when JAX sends it to the platform."""
    module = traced.lower(lowering_platforms=("neuron",)).compiler_ir("stablehlo")
    return compiled(module, numerics)


def compiled(module: Any, numerics: str = "ieee") -> bytes:
    """The program of one core that a module becomes on its way through a client."""
    policy = policy_of(Options(numerics=numerics, legality="off"), CHIPS[CHIP])
    host = _private_client()
    return compile_program(mlir.portable_artifact(module), CompileOptions(), host, policy).per_core


@cache
def _private_client() -> HostClient:
    return HostClient(1)


def host_operations(program: Program) -> list[str]:
    """Operations that no engine does."""
    return [i.function for _, i in instructions(program) if isinstance(i, Host)]


def emulated(
    program: Program, code: bytes, arguments: Sequence[Sequence[np.ndarray]], **options: Any
) -> list[list[np.ndarray]]:
    """The results of every rank."""
    with hlo.context():
        specs = hlo.signature(hlo.load(code)).result_types
    inputs = [
        {f"arg{index}": stored(np.asarray(a)) for index, a in enumerate(each) if np.size(a)}
        for each in arguments
    ]
    found = run(program, inputs, host=run_on_host, **options)
    return [
        [
            restored(each[f"res{index}"], spec)
            if f"res{index}" in each
            else np.zeros(spec.shape, np.bool_ if spec.dtype == TOKEN else spec.dtype)
            for index, spec in enumerate(specs)
        ]
        for each in found
    ]


def run_on_host(instruction: Host, operands: list[np.ndarray]) -> list[np.ndarray]:
    """A `host` instruction through XLA on the CPU."""
    with hlo.context():
        signature = hlo.signature(hlo.load(instruction.attributes.encode()))
    given = iter(operands)
    values = [
        restored(next(given), spec) if np.prod(spec.shape) else np.zeros(spec.shape, spec.dtype)
        for spec in signature.argument_types
    ]
    results = on_cpu(instruction.attributes.encode(), values)
    return [stored(result).reshape(-1) for result in results if result.size]


def on_cpu(
    code: bytes, arguments: Sequence[np.ndarray], excess_precision: bool = True
) -> list[np.ndarray]:
    """A StableHLO program on XLA:CPU, which may leave out roundings with `excess_precision`."""
    device = jax.devices("cpu")[0]
    options = CompileOptions()
    overrides = {
        **QUICK_COMPILE,
        "xla_cpu_use_fusion_emitters": True,  # the older ones clamp no truth values
        "xla_allow_excess_precision": excess_precision,
    }
    options.env_option_overrides = list(overrides.items())
    executable = device.client.compile_and_load(code, xla_client.DeviceList((device,)), options)
    values = [jax.device_put(np.asarray(a), device) for a in arguments]
    shards = executable.execute_sharded(values).disassemble_into_single_device_arrays()
    return [np.asarray(arrays[0]) for arrays in shards]


def check(
    function: Callable[..., Any],
    *arguments: Any,
    tolerance: Tolerance = EXACT,
    host: bool = False,
    numerics: str = "ieee",
    excess_precision: bool = True,
    tuning: Tuning = DEFAULT,
) -> Program:
    """Asserts that a jax function gives the same on engines as on the CPU; its program.

    Unless `host`, no operation may be left to the host. Without `excess_precision` the CPU makes
    every rounding that the function asks for.
    """
    traced = jax.jit(function, keep_unused=True).trace(*arguments)
    code = sent(traced, numerics)
    program = lowered(code, tuning=tuning)
    if not host:
        assert host_operations(program) == []
    arrays = [np.asarray(a) for a in jax.tree.leaves(arguments)]
    (found,) = emulated(program, code, [arrays])
    if excess_precision:
        wanted = on_cpu(traced.lower(lowering_platforms=("cpu",)).as_text().encode(), arrays)
    else:
        wanted = operation_by_operation(function, *arguments)
    for got, want in zip(found, wanted, strict=True):
        assert_close(got, want, tolerance)
    return program


def operation_by_operation(function: Callable[..., Any], *arguments: Any) -> list[np.ndarray]:
    """A function on XLA:CPU, each operation of which is a program of its own.

    In one program XLA would multiply and add FP16 numbers with a single rounding, where the
    processor has an instruction for it.
    """
    with jax.disable_jit(), jax.default_device(jax.devices("cpu")[0]):
        return [np.asarray(result) for result in jax.tree.leaves(function(*arguments))]


def assert_close(
    got: np.ndarray, want: np.ndarray, tolerance: Tolerance, largest: float | None = None
) -> None:
    """Equal in every element, or as close as `tolerance` says; NaN equals NaN. `largest` is the
    largest value, if these are a part of the result."""
    assert (got.shape, got.dtype) == (want.shape, want.dtype)
    if tolerance == EXACT or got.dtype.kind in "iub":
        same = (got == want) | ((got != got) & (want != want))
        assert same.all(), f"{got[~same][:5]} instead of {want[~same][:5]}"
        return
    a, b = (
        np.asarray(x, np.complex128 if x.dtype.kind == "c" else np.float64) for x in (got, want)
    )
    finite = np.isfinite(b)
    assert (np.isfinite(a) == finite).all()
    assert ((a == b) | (np.isnan(a) & np.isnan(b)))[~finite].all()
    a, b = a[finite], b[finite]
    spacing = np.spacing(np.abs(b).astype(np.float32)).astype(np.float64)
    relative = tolerance.relative
    if got.dtype.itemsize < 4:
        precision = float(ml_dtypes.finfo(got.dtype).eps)
        spacing = np.abs(b) * precision + 1e-30
        relative += tolerance.roundings * precision / 2
    largest = np.abs(b).max(initial=0) if largest is None else largest
    allowed = tolerance.ulps * spacing + relative * largest
    worst = np.abs(a - b) - allowed
    assert (worst <= 0).all(), f"{a[worst > 0][:5]} instead of {b[worst > 0][:5]}"


def orders(seeds: int) -> Iterator[Order]:
    """Dataflow orders: of so many seeds, and with transfers as late as they may be."""
    yield from (DataflowOrder(seed) for seed in range(seeds))
    yield DataflowOrder(0, adversarial=True)
