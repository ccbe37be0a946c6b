"""Estimates: their numbers against sums done by hand, machines, memory, and what is refused."""

from __future__ import annotations

import dataclasses
import json
import re
from xml.etree import ElementTree

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

import neuronjax
from neuronjax.errors import (
    ConfigurationError,
    LogicalCoreError,
    ScriptError,
    TopologyError,
    UnknownTargetError,
    UnsupportedProgramError,
)
from neuronjax.machine.chips import TRAINIUM2
from neuronjax.planning import workload
from neuronjax.planning.estimate import of_factory, setting_of
from neuronjax.planning.record import Estimate
from neuronjax.planning.tracing import abstract_mesh

GIB = 1 << 30


def bf16(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.bfloat16)


def product(x: jax.Array, weight: jax.Array) -> jax.Array:
    return x @ weight


def split(**changes: object) -> Estimate:
    """512 x 1024 times 1024 x 2048, whose columns four cores share."""
    specs = (PartitionSpec(), PartitionSpec(None, "model"))
    given = {"mesh": {"model": 4}, "in_specs": specs, "target": "trn2.3xlarge", **changes}
    return neuronjax.estimate(product, bf16(512, 1024), bf16(1024, 2048), **given)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def found() -> Estimate:
    return split(tokens=512, price=36.0, kinds={"weight": "weights"})


def test_work_is_that_of_a_core(found: Estimate) -> None:
    assert found.ranks == 4
    assert found.model_flops == 2 * 512 * 1024 * 2048 / 4
    assert found.hardware_flops >= found.model_flops
    least = 2 * (512 * 1024 + 1024 * 2048 // 4 + 512 * 2048 // 4)
    assert least <= found.hbm_traffic_bytes < 4 * least


def test_percentages_are_neuron_explorers(found: Estimate) -> None:
    cells, clock = 128 * 128, 2.4e9
    seconds = found.step_ns * 1e-9
    mfu = 100 * found.model_flops / (2 * 2 * cells * clock * seconds)  # two cores at LNC 2
    assert found.mfu_estimated_percent == pytest.approx(mfu)
    mbu = 100 * found.hbm_traffic_bytes / (2.9e12 / 4 * seconds)
    assert found.mbu_estimated_percent == pytest.approx(mbu)
    assert 0 < found.mfu_estimated_percent <= found.hfu_estimated_percent < 100
    assert found.mfu_estimated_percent <= found.mfu_max_achievable_estimated_percent <= 100


def test_memory_by_kind(found: Estimate) -> None:
    assert found.memory["weights"] == 2 * 1024 * 2048 // 4
    assert found.memory["arguments"] == 2 * 512 * 1024
    assert found.memory["results"] == 2 * 512 * 2048 // 4
    assert found.memory["reserved"] == 2 * 96 << 20
    assert found.capacity_bytes == 24 * GIB
    assert found.fits
    assert found.headroom_bytes == 24 * GIB - sum(found.memory.values())


def test_stochastic_rounding_takes_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines round what they write in either mode. The programs differ in the runs' number."""

    def normalised(x: jax.Array, weight: jax.Array) -> jax.Array:
        wide = x.astype(jnp.float32)
        narrow = (wide * jax.lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True))).astype(x.dtype)
        return jnp.tanh(narrow @ weight)

    arguments = bf16(512, 4096), bf16(4096, 1024)
    monkeypatch.setenv("NEURONJAX_NUMERICS", "chip")
    to_nearest = neuronjax.estimate(normalised, *arguments, target="trn1.2xlarge")
    monkeypatch.setenv("NEURON_RT_STOCHASTIC_ROUNDING_EN", "1")
    stochastic = neuronjax.estimate(normalised, *arguments, target="trn1.2xlarge")
    assert stochastic.step_ns == pytest.approx(to_nearest.step_ns, rel=0.01)


def test_rates_and_prices(found: Estimate) -> None:
    assert found.tokens_per_second == pytest.approx(512 / found.step_seconds)
    assert found.usd_per_step == pytest.approx(36 / 3600 * found.step_seconds)
    assert found.usd_per_million_tokens == pytest.approx(found.usd_per_step / 512 * 1e6)  # type: ignore[operator]


def test_text_and_json(found: Estimate) -> None:
    text = str(found)
    for word in ("step time", "MFU", "bottleneck", "weights", "headroom", "1 M tokens", "dot_gen"):
        assert word in text
    assert f"{__file__.rpartition('/')[2]}:{product.__code__.co_firstlineno + 1}" in text
    record = json.loads(found.to_json())
    assert record["model_flops"] == found.model_flops
    assert record["mfu_estimated_percent"] == found.mfu_estimated_percent
    assert set(record) >= {field.name for field in dataclasses.fields(Estimate)}


def test_the_roofline_as_a_picture(found: Estimate) -> None:
    """The step lies below the roof at its intensity, and says its rate: products over time."""
    picture = ElementTree.fromstring(found.roofline_svg())
    space = "{http://www.w3.org/2000/svg}"
    step, least = picture.findall(f"{space}circle")
    texts = [str(element.text) for element in picture.iter(f"{space}text")]
    rate = 2 * 512 * 1024 * 512 / found.step_ns / 1e3
    assert f"the step: {rate:.3g} ({found.mfu_estimated_percent:.1f} %)" in texts
    (roof,) = (path for path in picture.iter(f"{space}path") if path.get("stroke-width") == "2")
    begin, ridge, end = re.fullmatch(r"M(\S+ \S+)L(\S+ \S+)H(\S+)", roof.get("d", "")).groups()  # type: ignore[union-attr]
    across, up = zip(*((float(n) for n in place.split()) for place in (begin, ridge)), strict=True)
    across, up = (*across, float(end)), (*up, up[-1])
    for dot, tolerance in ((step, 0.0), (least, 0.1)):
        x, y = float(dot.get("cx", "")), float(dot.get("cy", ""))
        assert y >= np.interp(x, across, up) - tolerance
    nothing = neuronjax.estimate(jnp.sin, bf16(8, 8), target="trn2.3xlarge").roofline_svg()
    assert "the step has no matrix products" in nothing


def test_what_does_not_fit_says_what_to_change() -> None:
    params = {"w": jax.ShapeDtypeStruct((65536, 65536 * 2), jnp.bfloat16)}
    found = neuronjax.estimate(
        lambda params, x: x @ params["w"],
        params,
        bf16(1, 65536),
        target="trn1.2xlarge",
        kinds={"params": "weights"},
    )
    assert not found.fits
    assert found.memory["weights"] == 16 * GIB
    text = str(found)
    assert "It does not fit" in text
    assert "weights take 16.00 GiB" in text


def test_loops() -> None:
    def scan(x: jax.Array) -> jax.Array:
        return jax.lax.scan(lambda c, _: (jnp.tanh(c @ c), None), x, length=7)[0]

    def until(x: jax.Array) -> jax.Array:
        return jax.lax.while_loop(lambda c: jnp.sum(c) < 100, lambda c: jnp.tanh(c @ c), x)

    one = 2 * 128**3
    x = bf16(128, 128)
    assert neuronjax.estimate(scan, x, target="trn1.2xlarge").model_flops == 7 * one
    for trips in (1, 5):
        found = neuronjax.estimate(until, x, target="trn1.2xlarge", while_trips=trips)
        assert found.model_flops == trips * one
        assert any(f"{trips} trips" in each for each in found.assumed)


def factory(name: str = "stack", **settings: object) -> workload.Factory:
    return workload.load(f"tests.planning.programs:{name}", settings)


@pytest.mark.parametrize("mesh", ["core=1", "model=4"])
def test_deep_models_follow_from_shallow_ones(mesh: str) -> None:
    setting, axes = setting_of("trn2.3xlarge", None), abstract_mesh(mesh)
    line = of_factory(factory(), setting, axes)
    measured = of_factory(factory(), setting, axes, depths=(2, 8))
    assert line.assumed
    assert not measured.assumed
    assert line.model_flops == measured.model_flops == 2 * 2 * 128 * 128 * 256 * 8 / line.ranks
    scratch = {"scratch": pytest.approx(measured.memory["scratch"], rel=0.25)}
    assert line.memory == measured.memory | scratch
    assert line.step_ns == pytest.approx(measured.step_ns, rel=0.05)
    assert line.instruction_count == pytest.approx(measured.instruction_count, rel=0.02)
    assert line.hbm_traffic_bytes == pytest.approx(measured.hbm_traffic_bytes, rel=0.02)


@pytest.mark.slow
def test_a_deep_model_takes_the_same_time_from_whatever_depths_it_is_extrapolated() -> None:
    """Which kernels are worth another order is decided by their share of the deep model."""
    sizes = {"dim": 2048, "hidden": 7168, "heads": 16, "kv_heads": 4, "vocab": 32_064}
    decode = workload.load("neuronjax.workloads:decode", {**sizes, "context": 2048})
    setting, mesh = setting_of("trn2.3xlarge", None), abstract_mesh("model=1")
    pairs = ((2, 3), (3, 4), (5, 6))
    shallow, *deeper = (of_factory(decode, setting, mesh, depths=pair) for pair in pairs)
    assert shallow.assumed[-1] == "32 identical layers, extrapolated from 2 and 3"
    for other in deeper:
        assert other.step_ns == pytest.approx(shallow.step_ns, rel=5e-3)


def stack(layers: int) -> dict:
    def run(x: jax.Array) -> jax.Array:
        for _ in range(layers):
            x = jax.nn.silu(x @ x)
        return x

    return {"fn": run, "arguments": (bf16(128, 128),), "layers": layers}


def test_depth_is_extrapolated_as_on_the_command_line() -> None:
    line = neuronjax.estimate(stack, layers=9, target="trn1.2xlarge")
    assert line.assumed == ("9 identical layers, extrapolated from 3 and 4",)
    command = of_factory(
        workload.Factory(make=stack, name="stack"), setting_of("trn1.2xlarge", None), layers=9
    )
    assert line.step_ns == command.step_ns
    assert line.model_flops == 9 * 2 * 128**3


def test_mfu_counts_what_the_workload_says_at_any_depth() -> None:
    """Every layer computes its product again: that is work of the device, but none of the model."""

    def recomputed(layers: int) -> dict:
        def run(x: jax.Array) -> jax.Array:
            for _ in range(layers):
                x = jnp.tanh(x @ x) + jnp.tanh(jax.lax.optimization_barrier(x) @ x)
            return x

        return {"fn": run, "arguments": (bf16(128, 128),), "model_flops": layers * 2 * 128**3}

    found = neuronjax.estimate(recomputed, layers=9, target="trn1.2xlarge")
    assert found.model_flops == pytest.approx(9 * 2 * 128**3)
    assert found.hfu_estimated_percent >= 2 * found.mfu_estimated_percent > 0


@pytest.mark.parametrize(
    ("given", "words"),
    [
        pytest.param({"tokens": 3}, "leave out layers", id="tokens"),
        pytest.param({"fn": lambda: None}, "has no parameter layers", id="no layers"),
    ],
)
def test_factories_that_are_none_are_refused(given: dict, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        neuronjax.estimate(**{"fn": stack, "layers": 9, **given})


def test_flags_are_those_of_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEURONJAX_NUMERICS", "chip")
    f32 = jax.ShapeDtypeStruct((512, 512), jnp.float32)
    whole, cast = (
        neuronjax.estimate(jnp.matmul, f32, f32, target="trn1.2xlarge", flags=flags)
        for flags in ("", "--auto-cast=matmult --auto-cast-type=bf16")
    )
    assert cast.busy_ns["tensor"] < whole.busy_ns["tensor"] / 3


def test_what_the_host_does_is_assumed() -> None:
    x = jax.ShapeDtypeStruct((64, 64), jnp.float32)
    found = neuronjax.estimate(lambda x: jnp.abs(jnp.fft.rfft(x)), x, target="trn1.2xlarge")
    assert any("fft runs on the host" in each for each in found.assumed)


def test_more_cores_than_one_machine() -> None:
    setting = setting_of("trn1.2xlarge", None)
    found = of_factory(factory(), setting, abstract_mesh("model=8"), price=10.0)
    assert found.instances == 4
    alone = of_factory(factory(), setting_of("trn1.32xlarge", None), abstract_mesh("model=8"))
    assert found.busy_ns["collective"] > alone.busy_ns["collective"]  # over the network
    assert found.usd_per_step == pytest.approx(4 * 10 / 3600 * found.step_seconds)


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"target": "trn9.large"}, UnknownTargetError, "trn9.large"),
        ({"target": "trn1.2xlarge", "lnc": 2}, LogicalCoreError, "EARG001"),
        ({"target": "inf1.xlarge"}, UnsupportedProgramError, "inferentia1"),
        ({"target": "trn1.2xlarge", "mesh": {"model": 5}}, ValueError, "5"),
        ({"target": "trn1.2xlarge", "mesh": {"model": 0}}, TopologyError, "positive"),
        ({"mesh": "model:8"}, TopologyError, "data=4,model=8"),
        ({"in_specs": (PartitionSpec(),)}, TopologyError, "1 entries for 2"),
        ({"machine": {"chip": {"hbmm": 1}}}, ConfigurationError, "has no field 'hbmm'"),
        ({"machine": "nowhere.toml"}, ConfigurationError, "nowhere.toml"),
    ],
)
def test_refused(changes: dict, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        split(**changes)


def test_a_machine_must_be_full() -> None:
    with pytest.raises(TopologyError, match=r"several\s+machines must fill them"):
        of_factory(factory(), setting_of("trn2.3xlarge", 1), abstract_mesh("data=3,model=4"))


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("tests.planning.programs", "module:function"),
        ("tests.planning.programs:nothing", "no function 'nothing'"),
        ("tests.planning.nowhere:stack", "no module"),
    ],
)
def test_no_such_workload(spec: str, words: str) -> None:
    with pytest.raises(ScriptError, match=words):
        workload.load(spec)


def test_workloads_of_other_shapes() -> None:
    setting = setting_of("trn1.2xlarge", None)
    assert of_factory(factory("whole"), setting, batch=64).model_flops == 2 * 64 * 64 * 128
    with pytest.raises(ConfigurationError, match="returned int"):
        of_factory(factory("nonsense"), setting)
    with pytest.raises(ConfigurationError, match="has no parameter colour"):
        of_factory(factory("whole", colour="red"), setting)


def test_records_stay_as_they_are() -> None:
    assert TRAINIUM2.hbm.capacity_bytes == 96 * GIB


def test_the_step_lies_in_its_range(found: Estimate) -> None:
    low, high = found.range_ns
    assert low < found.step_ns < high
    slowest, fastest = found.tokens_per_second_range  # type: ignore[misc]
    assert (slowest, fastest) == pytest.approx((512e9 / high, 512e9 / low))
    assert f"({found.basis})" in str(found)
    record = json.loads(found.to_json())
    assert record["range_ns"] == [low, high]
    assert record["basis"] == found.basis
    assert found.samples_per_second_range is None


def layers(x: jax.Array, *weights: jax.Array) -> jax.Array:
    for weight in weights:
        x = jnp.tanh(x @ weight)
    return x


def loss(x: jax.Array, *weights: jax.Array) -> jax.Array:
    return layers(x, *weights).astype(jnp.float32).sum()


WEIGHTS = [bf16(1024, 1024)] * 3
BASES: dict[str, tuple[object, tuple[object, ...], dict[str, object], str]] = {
    "tokens": (layers, (bf16(1, 4096), *[bf16(4096, 4096)] * 8), {}, "decoding"),
    "tokens on several cores": (
        layers, (bf16(1, 1024), *WEIGHTS),
        {"mesh": {"model": 4}, "in_specs": (PartitionSpec(), *[PartitionSpec(None, "model")] * 3)},
        "decoding on several cores",
    ),
    "rows": (layers, (bf16(1024, 1024), *WEIGHTS), {}, "forward passes on one core"),
    "gradients": (
        jax.grad(loss, argnums=(1, 2, 3)), (bf16(1024, 1024), *WEIGHTS),
        {"kinds": {"weights": "weights"}}, "as there are too few for training steps",
    ),
    "a product": (
        product, (bf16(512, 512), bf16(512, 512)), {}, "as there are too few for single kernels"
    ),
    "a chip without points": (
        layers, (bf16(1024, 1024), *WEIGHTS), {"target": "trn3-gen1-ultraserver"},
        "none of them is of trainium3",
    ),
    "a changed machine": (
        layers, (bf16(1024, 1024), *WEIGHTS), {"machine": {"chip": {"hbm": {"bandwidth": "x2"}}}},
        "the machine's records were changed",
    ),
    "FP8": (
        product, [jax.ShapeDtypeStruct((2048, 2048), jnp.float8_e4m3)] * 2, {},
        "no public time is of FP8 or FP4 products",
    ),
    "the host": (
        jnp.fft.fft, (jax.ShapeDtypeStruct((64, 64), jnp.complex64),), {},
        "the host's own work is not timed",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BASES)
def test_what_the_range_rests_on(case: str) -> None:
    fn, arguments, given, words = BASES[case]
    target = {"target": "trn2.3xlarge", **given}
    assert words in neuronjax.estimate(fn, *arguments, **target).basis  # type: ignore[arg-type]
