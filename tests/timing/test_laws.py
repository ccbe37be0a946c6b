"""Better hardware is never slower, more work is never faster."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neuronjax.machine.machine import Machine
from neuronjax.machine.specs import ChipSpec, Engine
from neuronjax.program.text import parse
from neuronjax.timing.calibration import CALIBRATION
from neuronjax.timing.network import Op, collective_time
from neuronjax.timing.platform import Platform
from neuronjax.timing.schedule import schedule
from tests.timing.programs import ANOMALY, every, pipeline

PROGRAMS = every()
FEW = settings(max_examples=25, deadline=None)
names = st.sampled_from(sorted(set(PROGRAMS) - {"matmul", "golden all_reduce"}))
factors = st.floats(1.0, 8.0)


def replaced(chip: ChipSpec, path: str, factor: float) -> ChipSpec:
    """A chip with one number, named by its path, multiplied."""
    head, _, rest = path.partition(".")
    value: Any = getattr(chip, head)
    new = replaced(value, rest, factor) if rest else type(value)(value * factor)
    return dataclasses.replace(chip, **{head: new})


def with_clock(chip: ChipSpec, engine: Engine, factor: float) -> ChipSpec:
    specs = dict(chip.core.engines)
    specs[engine] = dataclasses.replace(
        specs[engine], clock_hz=int(specs[engine].clock_hz * factor)
    )
    return dataclasses.replace(chip, core=dataclasses.replace(chip.core, engines=specs))


def total(name: str, chip: ChipSpec | None = None, **changes: Any) -> float:
    platform = Platform.of(PROGRAMS[name])
    if chip is not None:
        changes["chip"] = chip
    return schedule(PROGRAMS[name], platform=dataclasses.replace(platform, **changes)).total_ns


@FEW
@given(names, factors)
def test_more_memory_bandwidth_is_never_slower(name: str, factor: float) -> None:
    chip = replaced(PROGRAMS[name].target.chip_spec, "hbm.bandwidth", factor)
    assert total(name, chip) <= total(name) * ANOMALY


@FEW
@given(names, factors)
def test_faster_transfers_are_never_slower(name: str, factor: float) -> None:
    spec = PROGRAMS[name].target.chip_spec
    dma = spec.core.dma
    faster = dataclasses.replace(
        dma,
        engine_bandwidth=int(dma.engine_bandwidth * factor),
        engine_peak_bandwidth=int(dma.engine_peak_bandwidth * factor),
    )
    chip = dataclasses.replace(
        spec,
        core=dataclasses.replace(spec.core, dma=faster),
        published_dma_bandwidth=None,
    )
    assert total(name, chip) <= total(name) * ANOMALY


@FEW
@given(names, st.sampled_from([Engine.VECTOR, Engine.SCALAR, Engine.GPSIMD]), factors)
def test_faster_engines_are_never_slower(name: str, engine: Engine, factor: float) -> None:
    chip = with_clock(PROGRAMS[name].target.chip_spec, engine, factor)
    assert total(name, chip) <= total(name) * ANOMALY


@FEW
@given(
    names,
    st.sampled_from(["wake_ns", "dma_start_ns", "dma_completion_ns", "activation_table_ns"]),
    st.floats(0.0, 1.0),
)
def test_less_latency_is_never_slower(name: str, constant: str, factor: float) -> None:
    less = dataclasses.replace(CALIBRATION, **{constant: getattr(CALIBRATION, constant) * factor})
    assert total(name, calibration=less) <= total(name) * ANOMALY


@FEW
@given(names, st.integers(1, 8))
def test_fewer_neighbours_are_never_slower(name: str, busy: int) -> None:
    assert total(name, busy_cores=busy) <= total(name, busy_cores=busy + 1) * ANOMALY


@FEW
@given(st.integers(1, 200), st.integers(1, 2048), st.integers(1, 4))
def test_more_work_is_never_faster(trips: int, work: int, slots: int) -> None:
    def time(trips: int, work: int, slots: int) -> float:
        return schedule(pipeline(trips, work=work, slots=slots)).total_ns

    base = time(trips, work, slots)
    assert time(trips + 1, work, slots) >= base
    assert time(trips, min(2048, work + 64), slots) >= base
    assert time(trips, work, slots + 1) <= base


@FEW
@given(
    st.sampled_from(["vector", "scalar", "gpsimd"]),
    st.sampled_from(["trainium1", "trainium2", "trainium3"]),
    st.sampled_from([1, 8, 64]),
)
def test_work_between_a_result_and_its_reader_is_never_faster(
    engine: str, target: str, columns: int
) -> None:
    """However much of it there is, the reader comes after the result is in memory."""

    def time(copies: int) -> float:
        copy = f"tensor_copy {{}} engine={engine}"
        whole = f"<0, 128>[0; 1:{columns}]"
        between = [f"dst=%d{whole} src=%b{whole}"] * copies
        body = [f"dst=%a{whole} src=%b{whole}", *between, f"dst=%c{whole} src=%a{whole}"]
        buffers = "".join(f"sbuf %{name} : float32[128, {columns}]\n" for name in "abcd")
        lines = "\n".join(map(copy.format, body))
        text = f'program "p" target {target} lnc 1 {{\nkernel "k" {{\n{buffers}{lines}\n}}\n}}'
        return schedule(parse(text)).total_ns

    times = [time(copies) for copies in range(8)]
    assert times == sorted(times)


@FEW
@given(
    st.sampled_from(Op),
    st.integers(1, 1 << 32),
    st.integers(0, 1 << 24),
    st.sampled_from(["trn1.32xlarge", "trn2.48xlarge", "trn3-gen1-ultraserver"]),
    st.integers(1, 4),
)
def test_collectives_grow_with_bytes_and_neighbours(
    op: Op, nbytes: int, more: int, target: str, concurrent: int
) -> None:
    machine = Machine.create(target)
    ranks = machine.core_count

    def time(nbytes: int, concurrent: int) -> float:
        return collective_time(op, nbytes, ranks, machine, concurrent=concurrent).total_ns

    assert time(nbytes, concurrent) <= time(nbytes + more, concurrent)
    assert time(nbytes, concurrent) <= time(nbytes, concurrent + 1)


@pytest.mark.parametrize("name", ["matmul"])
def test_a_faster_tensor_engine_is_never_slower(name: str) -> None:
    spec = PROGRAMS[name].target.chip_spec
    tensor = spec.core.tensor
    faster = dataclasses.replace(tensor, clock_hz=2 * tensor.clock_hz, published_tflops={})
    chip = dataclasses.replace(
        spec, core=dataclasses.replace(spec.core, tensor=faster), published_tflops={}
    )
    assert total(name, chip) < 0.6 * total(name)


@pytest.mark.parametrize("engine", [Engine.VECTOR, Engine.SCALAR])
@pytest.mark.parametrize("name", ["mamba", "attention BF16", "attention FP32", "run ahead", "exp"])
def test_kernels_without_contention_have_no_anomaly(name: str, engine: Engine) -> None:
    spec = PROGRAMS[name].target.chip_spec
    assert total(name, with_clock(spec, engine, 2)) <= total(name)
    assert total(name, replaced(spec, "hbm.bandwidth", 2)) <= total(name)
