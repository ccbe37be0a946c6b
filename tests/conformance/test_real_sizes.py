"""Programs at the sizes of real models: they are lowered, and take a time that can be true."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from tests.conformance.real_sizes.checks import (
    LAWS,
    Estimated,
    Law,
    Net,
    Outcome,
    is_above_its_roofline,
    is_estimated,
    is_faster_than_with_a_row_more,
    is_in_time,
    is_slower_than_on_a_newer_machine,
)
from tests.conformance.real_sizes.least import least, live_work
from tests.conformance.real_sizes.program import SizedProgram, sized_program
from tests.conformance.real_sizes.quick import QUICK
from tests.conformance.real_sizes.ratios import table

CASES = [(kind, seed) for kind, seeds in QUICK.items() for seed in seeds]


@pytest.fixture(scope="module")
def net() -> Iterator[Net]:
    with Net() as process:
        yield process


@pytest.mark.parametrize(("kind", "seed"), CASES)
def test_programs_of_real_sizes(net: Net, kind: str, seed: int) -> None:
    finding, _ = net.check(sized_program(seed, kind), LAWS)
    assert finding is None, f"{finding.error}\n{finding.program.script}"


FOUND = (
    pytest.param(
        SizedProgram(
            "sorting",
            {"rows": 1, "width": 32_000, "how": "sort", "first_axis": False, "dtype": "bfloat16"},
            "trn3-gen1-ultraserver",
        ),
        is_estimated,
        marks=pytest.mark.slow,
    ),
    (
        SizedProgram(
            "loss",
            {"rows": 1, "words": 32, "form": "gathered", "gradient": True, "dtype": "float32"},
            "trn1.2xlarge",
        ),
        is_faster_than_with_a_row_more,
    ),
    (
        SizedProgram(
            "layers_in_a_loop",
            {"layers": 2, "rows": 1, "width": 2048, "hidden": 3072, "remat": False,
             "gradient": True, "dtype": "float32"},
            "trn2.3xlarge",
        ),
        is_estimated,
    ),
    (
        SizedProgram(
            "norm_of_gradients",
            {"layers": 32, "width": 768, "hidden": 3072, "dtype": "float32"},
            "trn2.3xlarge",
        ),
        is_slower_than_on_a_newer_machine,
    ),
    (
        SizedProgram(
            "norm_of_groups",
            {"batch": 3, "pixels": 224, "channels": 640, "groups": 1, "act": False,
             "gradient": True, "dtype": "bfloat16"},
            "trn2.3xlarge",
        ),
        is_faster_than_with_a_row_more,
    ),
    (
        SizedProgram(
            "depthwise",
            {"batch": 3, "pixels": 256, "channels": 128, "multiplier": 1, "kernel": 3, "stride": 1,
             "dilation": 1, "layout": "NCHW", "wrt": "weight", "dtype": "bfloat16"},
            "inf2.xlarge",
        ),
        is_faster_than_with_a_row_more,
    ),
    (
        SizedProgram(
            "convolution_of_groups",
            {"batch": 32, "pixels": 64, "channels": 128, "features": 64, "kernel": 7, "stride": 2,
             "dilation": 1, "groups": 2, "layout": "NHWC", "wrt": "weight", "dtype": "bfloat16"},
            "trn2.3xlarge",
        ),
        is_faster_than_with_a_row_more,
    ),
    (
        SizedProgram(
            "decoding",
            {"batch": 8, "places": 128, "heads": 1, "groups": 1, "width": 32, "queries": 1,
             "update": True, "dtype": "float32"},
            "trn3-gen1-ultraserver",
            {"x": 4},
            {"q": (None,) * 5, "keys": (None,) * 4, "values": (None, None, None, "x"),
             "length": (), "k": (None,) * 4, "v": ("x", None, None, None)},
        ),
        is_estimated,
    ),
)  # fmt: skip
"""Programs that new seeds have found, as small as they could be made, with the law they broke."""


@pytest.mark.parametrize(("program", "law"), FOUND)
def test_what_seeds_have_found(net: Net, program: SizedProgram, law: Law) -> None:
    finding, _ = net.check(program, [law])
    assert finding is None, finding.error


def test_a_seed_is_a_program() -> None:
    assert sized_program(7).script == sized_program(7).script
    assert sized_program(7).script != sized_program(8).script


@pytest.mark.parametrize("mesh", [False, True])
def test_scripts_stand_alone(mesh: bool) -> None:
    program = next(
        program
        for program in (sized_program(seed, "moved") for seed in range(100))
        if bool(program.mesh) == mesh
    )
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program.script], capture_output=True, text=True
    )
    assert program.machine in ran.stdout, ran.stderr


class Canned(Net):
    """Answers by a rule, and estimates nothing."""

    def __init__(self, rule: Mapping[str, Outcome], otherwise: Outcome) -> None:
        super().__init__()
        self.rule, self.otherwise = rule, otherwise

    def estimate(self, program: SizedProgram) -> Outcome:
        known = {program.machine, *(f"{k}={v}" for k, v in program.choices.items())}
        return next((self.rule[each] for each in known if each in self.rule), self.otherwise)

    def estimate_as_user(self, program: SizedProgram) -> Outcome:
        return self.estimate(program)


GOOD = Estimated(time_ns=100.0, roofline_ns=50.0, cpu_seconds=1.0, busiest="dma")
NORM = SizedProgram(
    "norm", {"rows": 8, "width": 128, "sort": "l2", "gradient": False, "dtype": "bfloat16"},
    "trn2.3xlarge",
)  # fmt: skip


@pytest.mark.parametrize(
    ("law", "rule", "error"),
    [
        (is_estimated, {}, ""),
        (is_estimated, {"width=128": "SbufOverflowError: 300 KiB"}, "SbufOverflowError"),
        (is_in_time, {"width=128": replace(GOOD, cpu_seconds=21.0)}, "slow: the estimate takes 21"),
        (is_above_its_roofline, {"width=128": replace(GOOD, time_ns=49.0)}, "0.98 of 0.1 µs"),
        (is_faster_than_with_a_row_more, {}, ""),
        (is_faster_than_with_a_row_more, {"rows=9": replace(GOOD, time_ns=98.0)}, "a row more"),
        (is_slower_than_on_a_newer_machine, {}, ""),
        (
            is_slower_than_on_a_newer_machine,
            {"trn3-gen1-ultraserver": replace(GOOD, time_ns=102.0)},
            "slower on trn3",
        ),
    ],
)
def test_laws(law: Law, rule: Mapping[str, Outcome], error: str) -> None:
    said = law(Canned(rule, GOOD), NORM)
    assert error in said
    assert bool(said) == bool(error)


def test_clocks_of_trainium2_may_show() -> None:
    """A program that one engine computes takes 7/6 of its time on Trainium1."""
    program = replace(NORM, machine="trn1.2xlarge")
    for time_ns, is_wrong in ((116.0, False), (119.0, True)):
        net = Canned({"trn2.3xlarge": replace(GOOD, time_ns=time_ns)}, GOOD)
        assert bool(is_slower_than_on_a_newer_machine(net, program)) == is_wrong


def test_programs_shrink() -> None:
    """Only what the failure needs is left of the choices."""
    net = Canned({"width=8192": "SbufOverflowError: 300 KiB"}, GOOD)
    choices = {"rows": 4096, "width": 8192, "sort": "l2", "gradient": True, "dtype": "bfloat16"}
    finding, _ = net.check(SizedProgram("norm", choices, "inf2.xlarge"), LAWS)
    assert finding is not None
    assert finding.program.choices == {
        "rows": 1, "width": 8192, "sort": "layer", "gradient": False, "dtype": "float32"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("size", "taps", "stride", "padding", "spread", "dilation", "groups"),
    [(9, 3, 1, (1, 1), 1, 1, 1), (10, 3, 2, (0, 1), 1, 2, 2), (7, 4, 1, (2, 2), 2, 1, 1)],
)
def test_multiplications_are_counted(
    size: int, taps: int, stride: int, padding: tuple[int, int], spread: int, dilation: int,
    groups: int,
) -> None:  # fmt: skip
    """A convolution of ones adds up the pairs that meet."""

    def convolution(x: jax.Array, w: jax.Array) -> jax.Array:
        return lax.conv_general_dilated(
            x, w, (stride,), [padding], (spread,), (dilation,), ("NHC", "HIO", "NHC"), groups
        )

    x, w = jnp.ones((2, size, 4)), jnp.ones((taps, 4 // groups, 6))
    flops, _ = live_work(jax.make_jaxpr(convolution)(x, w).jaxpr)
    with jax.default_device(jax.devices("cpu")[0]):
        assert flops["float32"] == 2 * convolution(x, w).sum()


def test_dead_values_cost_nothing() -> None:
    def program(a: jax.Array, b: jax.Array, c: jax.Array) -> jax.Array:
        rows, _ = lax.scan(lambda x, _: (jnp.tanh(x @ b), x @ b), a, length=5)
        del c
        return jax.jit(lambda x: (x @ b, x + 1))(rows)[1]

    square = jnp.ones((4, 4), jnp.bfloat16)
    flops, used = live_work(jax.make_jaxpr(program)(square, square, square).jaxpr)
    assert flops == {"bfloat16": 2 * 2 * 5 * 4**3}
    assert used == [True, True, False]


def test_what_must_be_done_is_divided_over_a_mesh() -> None:
    whole = least(NORM)
    split = {"x": ("a", None)}
    part = least(replace(NORM, mesh={"a": 4}, splits=split))
    assert part.nbytes == whole.nbytes / 4


def test_windows_that_lie_apart_read_a_share() -> None:
    choices = {
        "batch": 1, "pixels": 64, "channels": 8, "features": 16, "kernel": 1, "stride": 2,
        "dilation": 1, "groups": 1, "layout": "NHWC", "wrt": "none", "dtype": "float32",
    }  # fmt: skip
    program = SizedProgram("convolution", choices, "trn2.3xlarge")
    assert least(program).nbytes == 4 * (32 * 32 * 8 + 8 * 16 + 32 * 32 * 16)


@pytest.mark.slow
def test_ratios_are_a_table() -> None:
    entry = {"kinds": "norm", "machine": "trn1.2xlarge", "ns": 2e5, "ratio": 2.0}
    entries = [entry, {**entry, "ratio": 4.0}, {**entry, "ns": 200.0}, {"kinds": "norm"}]
    assert table(entries).splitlines()[2].split("|")[1:5] == [" norm ", " 2 ", "  ", " 3.0 / 4.0 "]
