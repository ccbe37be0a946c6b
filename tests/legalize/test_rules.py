"""Every rule matches what it is for, at the line where it is."""

from __future__ import annotations

import warnings
from dataclasses import replace

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

from neuronjax.errors import LegalityError, LegalityWarning, shown_line
from neuronjax.hlo import module as hlo
from neuronjax.legalize.report import Finding, Reporter
from neuronjax.legalize.rules import RULES, elsewhere
from neuronjax.legalize.rules.rule import Cores, Severity
from neuronjax.machine.machine import Machine
from tests.legalize.finding import bytecode, found_in, found_per_core, mapped, partitioned
from tests.legalize.programs import CASES, MAPPED, SCATTERED, Case

PUBLIC_CODES = {
    "EARG001", "EBIR023", "EBVF030", "EHCA005", "EMOD025", "EOOM001", "EOOM002", "ESFH002",
    "ESPP004", "ESPP047", "EUOC002", "EXSP001", "EXTP004", "ESMP002",
    *(f"EVRF{number:03}" for number in (1, *range(4, 8), 9, 10, 11, 13, *range(15, 20), 22, 31)),
    *(f"EVRF{number:03}" for number in range(35, 66)),
}  # fmt: skip
"""The index of the Neuron compiler's error pages (SDK 2.32), and the code of its release notes."""

KNOWN_ISSUES = {
    "Threefry": "the Threefry generator",
    "caching and donation before JAX 0.4.34": None,
    "meshes of non-connected cores": "collectives over cores that are not connected",
    "dtypes": "types without code generation",
    "jax.random.randint": "jax.random.randint",
    "dynamic while_loop": "loops with an unknown number of steps",
    "jax.lax.cond": "lax.cond and lax.switch",
    "host callbacks": "host callbacks (jax.debug, pure_callback, io_callback)",
    "jax.dlpack": None,
    "jax.experimental.sparse": None,
    "jax.lax.sort": "sort comparators other than LE, GE, LT and GT",
    "jax.lax.reduce_precision": "reduce_precision",
    "slow compilation of random initialisation": None,
    "FP8 other than e4m3 and e5m2": "FP8 types other than e4m3 and e5m2",
    "complex dtypes": "complex numbers",
    "variadic reductions": "reductions of several operands",
    "scatter and gather out of bounds": "indices out of bounds, before SDK 2.29",
    "dot on int dtypes": "matrix products of integers of less than 32 bits",
    "lax.DotAlgorithmPreset": "precision algorithms of matrix products",
}
"""The JAX NeuronX known issues, each with a rule about it; ``None``: no program shows it."""

RULE_OF = {rule.what: rule for rule in RULES}


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


def test_every_rule_says_what_it_looks_at() -> None:
    assert [rule.what for rule in RULES if not rule.ops and not rule.elements] == []


def test_every_public_code_is_a_rule_or_decided_elsewhere() -> None:
    ruled = {code for rule in RULES for code in (rule.code, *rule.also)}
    assert PUBLIC_CODES - ruled == set(elsewhere.CODES)
    named = {code for code in ruled if not code.startswith(("JAX_", "RT_"))}
    assert named - PUBLIC_CODES == {"EVRF014", "EVRF029"}  # public issues only


def test_every_known_issue_of_jax_is_a_rule_or_decided_elsewhere() -> None:
    assert {rule for rule in KNOWN_ISSUES.values() if rule} <= set(RULE_OF)
    unseen = {issue for issue, rule in KNOWN_ISSUES.items() if rule is None}
    assert unseen == set(elsewhere.JAX_LIMITATIONS)


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
            Reporter().check(hlo.load(code), policy)
            return
        with pytest.raises(LegalityError) as raised:
            Reporter().check(hlo.load(code), policy)
    (line,) = (part for part in str(raised.value).splitlines() if f"({rule.what};" in part)
    assert line.startswith(f"  [NCC_{case.code}] {rule.message}")
    assert line.endswith(rule.remedy)
    if not isinstance(case.program, str):
        assert f" at {shown_line(f'{case.file}:{case.line}')})" in line


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
