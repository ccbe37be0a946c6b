"""Every rule matches what it is for, at the line where it is, and nothing else."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax._src.interpreters import mlir
from jax._src.lib import xla_client
from jax.sharding import Mesh, PartitionSpec

from neuronjax.compiler import find_illegal
from neuronjax.errors import LegalityError
from neuronjax.hlo import module as hlo
from neuronjax.host.client import HostClient
from neuronjax.legalize.policy import Policy, policy_of
from neuronjax.legalize.report import Finding, LegalityWarning, check, findings
from neuronjax.legalize.rules import RULES, elsewhere
from neuronjax.legalize.rules.rule import Cores, Severity
from neuronjax.machine.instances import find_instance
from neuronjax.machine.machine import Machine
from neuronjax.options import load
from tests.legalize import programs
from tests.legalize.programs import _NHWC, CASES, MAPPED, SCATTERED, Case

PUBLIC_CODES = {
    "EARG001", "EBIR023", "EBVF030", "EHCA005", "EMOD025", "EOOM001", "EOOM002", "ESFH002",
    "ESPP004", "ESPP047", "EUOC002", "EXSP001", "EXTP004", "ESMP002",
    *(f"EVRF{number:03}" for number in (1, *range(4, 8), 9, 10, 11, 13, *range(15, 20), 22, 31)),
    *(f"EVRF{number:03}" for number in range(35, 66)),
}  # fmt: skip
"""The index of the Neuron compiler's error pages (SDK 2.32), and the code of its release notes."""

RULE_OF = {rule.what: rule for rule in RULES}


def bytecode(case: Case) -> bytes:
    if isinstance(case.program, str):
        return case.program.encode()
    with jax.enable_x64(case.x64):
        lowered = jax.jit(case.program).trace(*case.args).lower(lowering_platforms=("neuron",))
        return mlir.module_to_bytecode(lowered.compiler_ir())


def mapped(case: Case, devices: list[jax.Device]) -> Any:
    """The program of a case on eight cores."""
    mesh = Mesh(np.array(devices), ("core",))
    spec = PartitionSpec("core") if case.args[0].ndim == 1 else PartitionSpec()
    return jax.jit(
        jax.shard_map(case.program, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    )


def partitioned(
    lowered: Any, devices: int, policy: Policy, cores: Cores | None = None
) -> list[Finding]:
    """What is found in the program of one core, after the partitioner."""
    options = xla_client.CompileOptions()
    build = options.executable_build_options
    build.num_partitions, build.use_shardy_partitioner = devices, True
    code = mlir.module_to_bytecode(lowered.compiler_ir())
    return find_illegal(code, options, HostClient(devices), policy, cores)


def found_per_core(case: Case, devices: list[jax.Device], cores: Cores | None) -> list[Finding]:
    lowered = mapped(case, devices).trace(*case.args).lower()
    return partitioned(lowered, len(devices), case.policy, cores)


def found_in(code: bytes, policy: Policy) -> list[Finding]:
    with hlo.context():
        return findings(hlo.load(code), policy)


def assert_at_its_line(case: Case, found: list[Finding]) -> None:
    rule = RULE_OF[case.what]
    assert rule.code == case.code
    matching = [finding for finding in found if finding.rule is rule]
    assert matching
    if not isinstance(case.program, str):
        assert {finding.where for finding in matching} == {f"{case.file}:{case.line}"}


def test_every_rule_has_a_program() -> None:
    assert len(RULE_OF) == len(RULES)
    assert {case.what for case in (*CASES, *MAPPED, *SCATTERED)} == set(RULE_OF)


def test_every_public_code_is_a_rule_or_decided_elsewhere() -> None:
    ruled = {code for rule in RULES for code in (rule.code, *rule.also)}
    assert PUBLIC_CODES - ruled == set(elsewhere.CODES)
    named = {code for code in ruled if not code.startswith(("JAX_", "RT_"))}
    assert named - PUBLIC_CODES == {"EVRF014", "EVRF029"}  # public issues only


@pytest.mark.parametrize("case", CASES, ids=str)
def test_found_at_its_line(case: Case) -> None:
    assert_at_its_line(case, found_in(bytecode(case), case.policy))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_strict_refuses_errors_alone(case: Case) -> None:
    rule, code = RULE_OF[case.what], bytecode(case)
    policy = replace(case.policy, legality="strict")
    with hlo.context(), warnings.catch_warnings():
        warnings.simplefilter("ignore", LegalityWarning)
        if rule.severity is not Severity.ERROR:
            check(hlo.load(code), policy)
            return
        with pytest.raises(LegalityError) as raised:
            check(hlo.load(code), policy)
    (line,) = (part for part in str(raised.value).splitlines() if f"({rule.what};" in part)
    assert line.startswith(f"  [NCC_{case.code}] {rule.message}")
    assert line.endswith(rule.remedy)
    assert isinstance(case.program, str) or f" at {case.file}:{case.line})" in line


RUNNING = [case for case in CASES if case.runs and not isinstance(case.program, str)]


@pytest.mark.parametrize("case", RUNNING, ids=str)
def test_runs_where_legality_is_off(case: Case) -> None:
    with jax.enable_x64(case.x64):
        on_neuron = jax.jit(case.program)(*case.args)
        with jax.default_device(jax.devices("cpu")[0]):
            on_cpu = jax.jit(case.program)(*case.args)
    jax.tree.map(
        lambda a, b: np.testing.assert_array_equal(np.asarray(a), np.asarray(b)), on_neuron, on_cpu
    )


# Programs on several cores


def scattered_cores() -> Cores:
    """Eight cores on chips 0, 5, 2, 7, … of a 4×4 torus, no two of which are neighbours."""
    machine = Machine.create("trn2.48xlarge")
    chips = (0, 5, 2, 7, 8, 13, 10, 15)
    return Cores(machine, tuple(chip * machine.cores_per_chip for chip in chips))


@pytest.mark.parametrize("case", MAPPED, ids=str)
def test_found_in_the_program_of_a_core(case: Case, neuron_devices: list[jax.Device]) -> None:
    found = found_per_core(case, neuron_devices, None)
    assert_at_its_line(case, found)


@pytest.mark.parametrize("case", SCATTERED, ids=str)
def test_found_on_unconnected_cores(case: Case, neuron_devices: list[jax.Device]) -> None:
    assert_at_its_line(case, found_per_core(case, neuron_devices, scattered_cores()))
    neighbours = Cores(Machine.create("trn2.48xlarge"), tuple(range(8)))
    for cores in (neighbours, None):
        found = found_per_core(case, neuron_devices, cores)
        assert case.what not in {finding.rule.what for finding in found}


@pytest.mark.parametrize("case", [*MAPPED, *SCATTERED], ids=str)
def test_programs_on_several_cores_run(case: Case, neuron_devices: list[jax.Device]) -> None:
    on_neuron = mapped(case, neuron_devices)(*case.args)
    on_cpu = mapped(case, jax.devices("cpu"))(*case.args)
    np.testing.assert_array_equal(np.asarray(on_neuron), np.asarray(on_cpu))


@pytest.mark.parametrize("case", [case for case in RUNNING if case.survives], ids=str)
def test_found_after_the_partitioner(case: Case, neuron_devices: list[jax.Device]) -> None:
    devices = neuron_devices[:2]
    mesh = Mesh(np.array(devices), ("core",))
    sharding = jax.sharding.NamedSharding(mesh, PartitionSpec())
    with jax.enable_x64(case.x64):
        lowered = jax.jit(case.program, in_shardings=sharding).trace(*case.args).lower()
        assert_at_its_line(case, partitioned(lowered, 2, case.policy))


# Versions and targets


def policy_for(target: str, sdk: str = "2.32", flags: str = "") -> Policy:
    environ = {"NEURONJAX_TARGET": target, "NEURONJAX_SDK": sdk, "NEURON_CC_FLAGS": flags}
    return policy_of(load(environ), find_instance(target).chip)


AS_E4M3 = "--experimental-unsafe-fp8e4m3fn-as-fp8e4m3"
TRN3 = "trn3-gen1-ultraserver"


@pytest.mark.parametrize(
    ("code", "program", "policy", "found"),
    [
        ("EVRF051", "e4m3fn", policy_for("trn1.2xlarge"), True),
        ("EVRF051", "e4m3fn", policy_for("inf2.xlarge"), True),
        ("EVRF051", "e4m3fn", policy_for("trn2.3xlarge"), True),
        ("EVRF051", "e4m3fn", policy_for(TRN3), False),
        ("EVRF051", "e4m3fn", policy_for("trn2.3xlarge", flags=AS_E4M3), False),
        ("EVRF051", "e4m3fn", policy_for("trn2.3xlarge", "2.30"), False),
        ("ESPP047", "e4m3fn", policy_for("trn2.3xlarge", "2.30"), True),
        ("ESPP047", "e4m3fn", policy_for("trn2.3xlarge", "2.31"), False),
        ("ESPP047", "e8m0fnu", policy_for("trn2.3xlarge"), True),
        ("ESPP047", "e8m0fnu", policy_for(TRN3), False),
        ("ESPP047", "e5m2", policy_for("inf1.xlarge"), True),
        ("ESPP047", "e5m2", policy_for("trn1.2xlarge"), False),
        ("EVRF052", "e4m3", policy_for(TRN3), False),
        ("EVRF052", "e4m3", Policy(core_version=5), True),
        ("EVRF004", "complex_numbers", policy_for("trn2.3xlarge", "2.31"), True),
        ("EVRF004", "complex_numbers", policy_for("trn2.3xlarge", "2.32"), False),
        ("EVRF004", "fft", policy_for("trn2.3xlarge", "2.32"), True),
        ("EVRF056", "gather_of_iota", policy_for("trn2.3xlarge", "2.29"), True),
        ("EVRF056", "gather_of_iota", policy_for("trn2.3xlarge", "2.28"), False),
        ("RT_OUT_OF_BOUNDS", "gather_of_iota", policy_for("trn2.3xlarge", "2.28"), True),
        ("ESMP002", "gather_of_constant", policy_for("trn2.3xlarge", "2.28"), False),
        ("EVRF031", "scatter_to_iota", policy_for("trn2.3xlarge", "2.28"), True),
        ("EVRF029", "sort", policy_for("trn1.2xlarge"), False),
        ("EVRF016", "integer_scatter_add", policy_for("trn2.3xlarge", "2.31"), True),
        ("EVRF016", "integer_scatter_add", policy_for("trn2.3xlarge", "2.32"), False),
        *(
            ("EVRF035", "integer_dot", policy_for(target, "2.32", f"{flag}={value}"), found)
            for flag in ["--implicit-integer-downcast"]
            for target, value, found in [
                ("trn2.3xlarge", "none", True),
                ("trn2.3xlarge", "scatter,pow", True),
                ("trn2.3xlarge", "dot,pow", False),
                ("trn2.3xlarge", "all", False),
                ("trn2.3xlarge", "default", False),
                ("trn1.2xlarge", "none", False),  # NeuronCore-v2 multiplies 32-bit integers
            ]
        ),
    ],
)
def test_holds_for(code: str, program: str, policy: Policy, found: bool) -> None:
    case = Case("", code, getattr(programs, program), _arguments(program))
    codes = {finding.rule.code for finding in found_in(bytecode(case), policy)}
    assert (code in codes) is found


def _arguments(program: str) -> tuple[Any, ...]:
    return (programs.NUMBERS,) if program.startswith("integer") else (programs.X,)


@pytest.mark.parametrize(
    ("flags", "code", "found"),
    [
        ("", "JAX_INT64", True),
        ("--native-int64=enabled", "JAX_INT64", False),
        ("", "ESFH002", True),
        ("--native-int64=enabled", "ESFH002", False),
    ],
)
def test_native_int64(flags: str, code: str, found: bool) -> None:
    case = Case("", code, programs.large_uint64, x64=True)
    policy = policy_for("trn2.3xlarge", flags=flags)
    codes = {finding.rule.code for finding in found_in(bytecode(case), policy)}
    assert (code in codes) is found


# Programs that break no rule


def branches_by_replica() -> str:
    """What XLA's partitioner makes of a host callback: one replica alone makes it."""
    return """
func.func @main(%arg0: tensor<f32>) -> tensor<f32> {
  %id = stablehlo.replica_id : tensor<ui32>
  %first = stablehlo.constant dense<0> : tensor<ui32>
  %0 = stablehlo.compare EQ, %id, %first : (tensor<ui32>, tensor<ui32>) -> tensor<i1>
  %1 = "stablehlo.if"(%0) ({ stablehlo.return %arg0 : tensor<f32> },
      { stablehlo.return %arg0 : tensor<f32> }) : (tensor<i1>) -> tensor<f32>
  return %1 : tensor<f32>
}
"""


def rbg_key(x: jax.Array) -> jax.Array:
    """A key that is not known at compile time."""
    return programs.key_of(jnp.arange(4, dtype=jnp.uint32) + x[0, 0].astype(jnp.uint32))


LEGAL: dict[str, Callable[..., Any] | str] = {
    "matmul and softmax": lambda x: jax.nn.softmax(x @ x.T),
    "scan": lambda x: lax.scan(lambda c, r: (c + r, c * r), x[0], x)[1],
    "reversed scan and its gradient": lambda x: jax.grad(
        lambda y: lax.scan(lambda c, r: (jnp.tanh(c + r), c), y[0], y, reverse=True)[1].sum()
    )(x),
    "fori_loop": lambda x: lax.fori_loop(2, 10, lambda i, y: y * i, x),
    "while_loop that counts": lambda x: lax.while_loop(
        lambda c: c[0] < 10, lambda c: (c[0] + 2, c[1] * 2), (0, x)
    )[1],
    "while_loop that counts down": lambda x: lax.while_loop(
        lambda c: c[1] != 0, lambda c: (c[0] * 2, c[1] - 1), (x, 8)
    )[0],
    "while_loop to a bound it carries": lambda x: lax.while_loop(
        lambda c: c[0] < c[1], lambda c: (c[0] + 1, c[1], c[2] * 2), (0, 3, x)
    )[2],
    "top_k": lambda x: lax.top_k(x, 2),
    "argmax and argmin": lambda x: (jnp.argmax(x, 1), jnp.argmin(x, 0)),
    "gather": lambda x: x[jnp.array([0, -8])],
    "gather by an iota": lambda x: x[jnp.arange(8)],
    "gather by what is computed": lambda x: x[x[0].astype(int)],
    "scatter": lambda x: x.at[jnp.arange(8), jnp.arange(8)].add(1.0),
    "scatter of integers that overwrites": lambda x: x.astype(int).at[jnp.array([1])].set(2),
    "gradient of an embedding": lambda x: jax.grad(lambda t: t[jnp.array([1, 1])].sum())(x),
    "cumulative sum": lambda x: jnp.cumsum(x, 1),
    "max pooling and its gradient": jax.grad(
        lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (2, 2), (2, 2), "VALID").sum()
    ),
    "strided convolution and its gradients": jax.grad(
        lambda x: lax.conv_general_dilated(
            x[None, :, :, None], x[:3, :3, None, None], (2, 2), "SAME", dimension_numbers=_NHWC
        ).sum()
    ),
    "random numbers of rbg": lambda x: (
        jax.random.normal(jax.random.split(rbg_key(x))[0], (4,)),
        jax.random.categorical(jax.random.fold_in(rbg_key(x), 3), x),
    ),
    "many keys of rbg": lambda x: jax.random.split(rbg_key(x), (3, 3)),
    "remainder": lambda x: x.astype(jnp.uint32) % 7,
    "erf, remat, custom derivative": lambda x: jax.grad(
        lambda y: jax.checkpoint(jax.scipy.special.erf)(jax.nn.silu(y)).sum()
    )(x),
    "FP8 that the chip has": lambda x: (x.astype(jnp.float8_e4m3), x.astype(jnp.float8_e5m2)),
    "QuantizeMX": programs.quantize(),
    "QuantizeMX along the dimension before the last": programs.quantize(
        programs.mx_config(dim=0, block_size=32, scale_method="EMAX"),
        results="(tensor<1x64xui32>, tensor<1x64xui8>)",
    ),
    "ScaledMatmul": programs.scaled_matmul(programs.BATCHED),
    "ScaledMatmul without configuration": programs.scaled_matmul(),
    "a branch for one replica": branches_by_replica(),
}


@pytest.mark.parametrize("name", LEGAL)
def test_legal(name: str) -> None:
    found = found_in(bytecode(Case(name, "", LEGAL[name])), Policy())
    assert [f for f in found if f.rule.severity >= Severity.WARNING] == []


def test_collectives_along_a_mesh_are_legal(neuron_devices: list[jax.Device]) -> None:
    """Sharded products, an embedding and a ring, on the partitioner's own terms."""
    mesh = Mesh(np.array(neuron_devices).reshape(2, 4), ("data", "model"))

    def step(table, x):
        def ring(y):
            return lax.ppermute(y, "model", [(i, (i + 1) % 4) for i in range(4)])

        spec = PartitionSpec("data", "model")
        y = jax.shard_map(ring, mesh=mesh, in_specs=spec, out_specs=spec)(x @ table)
        return jax.nn.log_softmax(y @ table.T)[jnp.arange(8), jnp.arange(8)].sum()

    sharding = jax.sharding.NamedSharding(mesh, PartitionSpec("data", "model"))
    lowered = (
        jax.jit(jax.grad(step), in_shardings=(sharding, sharding))
        .trace(programs.X.T[:, :8] @ programs.X, programs.X)
        .lower()
    )
    cores = Cores(Machine.create("trn2.3xlarge", 1), tuple(range(8)))
    found = partitioned(lowered, 8, Policy(), cores)
    assert [str(f) for f in found if f.rule.severity >= Severity.WARNING] == []


# Modes


@pytest.fixture
def branching() -> bytes:
    return bytecode(Case("", "", programs.cond))


def apply(code: bytes, mode: str) -> None:
    with hlo.context():
        check(hlo.load(code), Policy(legality=mode))


def test_off_looks_for_nothing(branching: bytes, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "neuronjax.legality"):
        apply(branching, "off")
    assert caplog.records == []


def test_log_records_findings_alone(branching: bytes, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "neuronjax.legality"):
        apply(branching, "log")
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert record.finding.rule.what == "lax.cond and lax.switch"
    assert str(record.finding) == record.getMessage()


def test_warn_points_at_the_users_line(branching: bytes) -> None:
    (case,) = (case for case in CASES if case.program is programs.cond)
    with pytest.warns(LegalityWarning, match=r"^\[NCC_EVRF001\] .*cond") as warned:
        apply(branching, "warn")
    (warning,) = warned
    assert (warning.filename, warning.lineno) == (case.file, case.line)


def test_warn_says_each_rule_once() -> None:
    def often(x):
        return lax.cond(x[0, 0] > 0, jnp.sin, jnp.cos, x) + lax.reduce_precision(
            lax.cond(x[0, 1] > 0, jnp.tan, jnp.exp, x), 5, 2
        )

    with pytest.warns(LegalityWarning) as warned:
        apply(bytecode(Case("", "", often)), "warn")
    assert len(warned) == 2


def test_notes_do_not_warn() -> None:
    code = bytecode(Case("", "", programs.integer_dot, (programs.NUMBERS,)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        apply(code, "warn")


def test_strict_lists_every_error() -> None:
    def twice(x):
        return lax.cond(x[0, 0] > 0, jnp.sin, jnp.cos, x) + lax.reduce_precision(x, 5, 2)

    with pytest.raises(LegalityError) as raised:
        apply(bytecode(Case("", "", twice)), "strict")
    heading, *lines = str(raised.value).splitlines()
    assert heading == "the program would not compile for trainium2 with Neuron SDK 2.32:"
    assert [line.split(";")[0].rpartition("(")[2] for line in lines] == [
        "lax.cond and lax.switch",
        "reduce_precision",
    ]
