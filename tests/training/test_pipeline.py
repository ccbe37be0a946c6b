"""The pipeline against JAX's own gradients of the whole model, and its time and memory."""

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from launch.errors import MeshError
from launch.training.pipeline import Pipeline, Place
from launch.training.pipeline_schedule import IDLE, Passes, make_schedule
from launch.training.stages import evenly
from tests.conftest import RunPython
from tests.training.pipelined import AXES, LAYERS, Model, piped, stages_of

# Schedules


SCHEDULES = [
    (name, stages, micro_batches, rounds)
    for name in ("gpipe", "1f1b")
    for stages, micro_batches, rounds in (
        (2, 1, 1), (2, 4, 1), (4, 8, 1), (3, 7, 1), (4, 2, 1), (8, 32, 1),
        (2, 4, 2), (4, 8, 2), (4, 16, 3),
    )
]  # fmt: skip


def passes_of(passes: Passes) -> Iterator[tuple[int, int, int, int, int]]:
    """(tick, stage, micro-batch, chunk, slot) of every pass."""
    for tick, stage in zip(*np.nonzero(passes.micro_batch != IDLE), strict=True):
        found = (passes.micro_batch, passes.chunk, passes.slot)
        yield (int(tick), int(stage), *(int(table[tick, stage]) for table in found))


def when(passes: Passes, stages: int) -> dict[tuple[int, int], int]:
    """(virtual stage, micro-batch) -> tick."""
    return {(c * stages + s, mb): tick for tick, s, mb, c, _ in passes_of(passes)}


@pytest.mark.parametrize("arguments", SCHEDULES, ids=str)
def test_every_pass_runs_once_when_its_input_arrives(
    arguments: tuple[str, int, int, int],
) -> None:
    schedule = make_schedule(*arguments)
    _, stages, micro_batches, rounds = arguments
    forward, backward = (when(p, stages) for p in (schedule.forward, schedule.backward))
    last = stages * rounds - 1
    every = {(virtual, mb) for virtual in range(last + 1) for mb in range(micro_batches)}
    assert forward.keys() == backward.keys() == every
    for (virtual, mb), tick in forward.items():
        assert virtual == 0 or forward[virtual - 1, mb] == tick - 1
        assert virtual == last or backward[virtual + 1, mb] == backward[virtual, mb] - 1
        assert tick <= backward[virtual, mb]


@pytest.mark.parametrize("arguments", SCHEDULES, ids=str)
def test_a_slot_holds_one_input_at_a_time(arguments: tuple[str, int, int, int]) -> None:
    schedule = make_schedule(*arguments)
    events = [(t, 0, s, slot, (mb, c)) for t, s, mb, c, slot in passes_of(schedule.forward)]
    events += [(t, 1, s, slot, (mb, c)) for t, s, mb, c, slot in passes_of(schedule.backward)]
    held: dict[tuple[int, int], tuple[int, int]] = {}
    for _, is_backward, stage, slot, what in sorted(events):
        if is_backward:
            assert held.pop((stage, slot)) == what
        else:
            assert held.setdefault((stage, slot), what) == what
    assert not held


@pytest.mark.parametrize(
    ("name", "stages", "micro_batches", "rounds", "slots"),
    # p, m and v of Narayanan et al.; a stage keeps 2·(p - s - 1) + 1 inputs.
    [("gpipe", 4, 32, 1, 32), ("1f1b", 4, 32, 1, 7), ("1f1b", 2, 32, 1, 3), ("1f1b", 8, 64, 1, 15)],
)
def test_inputs_that_a_stage_keeps(
    name: str, stages: int, micro_batches: int, rounds: int, slots: int
) -> None:
    assert make_schedule(name, stages, micro_batches, rounds).slots == slots


@pytest.mark.parametrize("arguments", SCHEDULES, ids=str)
def test_bubble_is_the_share_of_ticks_in_which_a_stage_waits(
    arguments: tuple[str, int, int, int],
) -> None:
    schedule = make_schedule(*arguments)
    for passes, kind in ((schedule.forward, "forward"), (schedule.backward, "backward")):
        ticks = sum(len(phase.ticks) for phase in schedule.phases if getattr(phase, kind))
        busy = np.mean(np.sum(passes.micro_batch != IDLE, axis=0))
        np.testing.assert_allclose(1 - busy / ticks, schedule.bubble)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("zero_bubble", 2, 4), "no pipeline schedule 'zero_bubble'; there is gpipe, 1f1b"),
        (("1f1b", 4, 6, 2), "groups of 4, and 6 is not a multiple"),
    ],
)
def test_schedules_that_do_not_fit(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(MeshError, match=message):
        make_schedule(*arguments)


# Layers


@pytest.mark.parametrize(
    ("blocks", "chunks", "layers"),
    [(8, 4, (2, 2, 2, 2)), (10, 4, (3, 3, 2, 2)), (5, 2, (3, 2)), (4, 4, (1, 1, 1, 1))],
)
def test_cuts_are_even(blocks: int, chunks: int, layers: tuple[int, ...]) -> None:
    assert evenly(blocks, chunks) == layers


# Gradients


@pytest.fixture(scope="module")
def expected() -> Any:
    """Loss and gradients of the whole model on one core of JAX's cpu platform."""
    stages, model = stages_of(tensor=False, split=False), Model()
    batch = model.batch()

    def whole(parameters: Any) -> jax.Array:
        all_layers = Place(jnp.int32(0), None)
        x = stages.run(parameters, stages.embed(parameters, batch), batch, all_layers)
        return stages.loss(parameters, x, batch)[0]

    with jax.default_device(jax.devices("cpu")[0]):
        return jax.jit(jax.value_and_grad(whole))(model.parameters())


@pytest.mark.parametrize(
    ("name", "micro_batches", "rounds", "sizes", "layers", "vocabulary"),
    [
        ("gpipe", 4, 1, (2, 2, 2), (2, 2), "split"),
        ("1f1b", 4, 1, (2, 2, 2), (3, 1), "split"),
        ("1f1b", 8, 1, (4, 1, 2), (1, 2, 1, 0), "split"),
        ("1f1b", 4, 2, (2, 1, 2), (1, 1, 1, 1), "split"),
        ("1f1b", 4, 2, (2, 1, 2), (1, 1, 1, 1), "whole"),
    ],
)
def test_gradients_are_those_of_the_whole_model(
    name: str,
    micro_batches: int,
    rounds: int,
    sizes: tuple[int, int, int],
    layers: tuple[int, ...],
    vocabulary: str,
    expected: Any,
) -> None:
    schedule = make_schedule(name, sizes[0], micro_batches, rounds)
    order = Pipeline(schedule, layers, AXES).order
    parameters = Model().parameters()
    for path in ("blocks.*.up", "blocks.*.down"):
        stack = parameters[path]
        # Rows beyond a chunk's layers must not matter.
        rows = [np.full_like(stack[0], 7) if row is None else stack[row] for row in order]
        parameters[path] = np.stack(rows)
    model = Model(split_vocabulary=vocabulary == "split")
    step, shardings = piped(model, schedule, layers, sizes)
    loss, gradients = step(*jax.device_put((parameters, Model().batch()), shardings))
    np.testing.assert_allclose(loss, expected[0], rtol=1e-6)
    for path, gradient in expected[1].items():
        got = np.asarray(gradients[path])
        if ".*." in path:
            assert not any(got[row].any() for row, layer in enumerate(order) if layer is None)
            got = got[[order.index(layer) for layer in range(LAYERS)]]
        np.testing.assert_allclose(got, gradient, rtol=1e-5, atol=1e-5, err_msg=path)


# Time and memory, as the platform accounts for them

PROGRAMS = """
import json
from launch.training.pipeline_schedule import make_schedule
from tests.training.pipelined import Model, compiled

for name, rounds, micro_batches, recompute in (
    ("gpipe", 1, 8, False), ("gpipe", 1, 24, False), ("gpipe", 1, 8, True), ("gpipe", 1, 24, True),
    ("1f1b", 1, 8, False), ("1f1b", 1, 24, False), ("1f1b", 2, 8, False), ("1f1b", 2, 24, False),
):
    model = Model(
        rows=micro_batches, length=1024, dim=512, width=4096, layers=8, recompute=recompute
    )
    program = compiled(make_schedule(name, 4, micro_batches, rounds), model)
    cost = program.cost_analysis()
    memory = program.memory_analysis().temp_size_in_bytes
    key = [name, rounds, micro_batches, recompute]
    print(json.dumps([key, cost["optimal_seconds"], cost["flops"], memory]))
"""
STAGES = 4
ACTIVATION_BYTES, HIDDEN_BYTES = 1024 * 512 * 4, 1024 * 4096 * 4  # of a micro-batch
BLOCK_FLOPS = 2 * 2 * 1024 * 512 * 4096  # of a forward pass
HEAD_FLOPS = 3 * 2 * 1024 * 512 * 16 // STAGES


class Measured(NamedTuple):
    """Time, FLOPs and memory of a core in one step."""

    seconds: float
    flops: float
    memory: int


Key = tuple[str, int, int, bool]
"""Schedule, rounds, micro-batches, and whether blocks are made again."""


@pytest.fixture(scope="module")
def measured(run_python: RunPython) -> dict[Key, Measured]:
    """Steps of eight blocks on four stages, as the platform accounts for them."""
    settings = {"NEURONJAX_SIMULATE": "1", "NEURONJAX_EXECUTOR": "none"}
    done = run_python(PROGRAMS, settings, timeout=300)
    rows = map(json.loads, done.stdout.splitlines())
    return {tuple(key): Measured(*numbers) for key, *numbers in rows}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "rounds"), [("gpipe", 1), ("1f1b", 1), ("1f1b", 2)])
def test_simulated_time_has_the_bubble(name: str, rounds: int, measured: Any) -> None:
    """The time of a step that is no micro-batch's."""
    bubble = make_schedule(name, STAGES, 8, rounds).bubble
    share = _waiting(measured, name, rounds) / measured[name, rounds, 8, False].seconds
    assert share == pytest.approx(bubble, rel=0.1)


@pytest.mark.slow
def test_two_chunks_of_a_stage_wait_less_than_one(measured: Any) -> None:
    """Each of their passes copies the weights of a chunk, which is no waiting."""
    assert _waiting(measured, "1f1b", 2) < 0.7 * _waiting(measured, "1f1b", 1)


def _waiting(measured: Any, name: str, rounds: int) -> float:
    """Seconds of a step of 8 micro-batches that are no micro-batch's."""
    few, many = (measured[name, rounds, number, False].seconds for number in (8, 24))
    of_micro_batch = (many - few) / 16
    return few - 8 * of_micro_batch


@pytest.mark.slow
@pytest.mark.parametrize(("recompute", "passes"), [(False, 3), (True, 3.5)])
def test_flops_are_those_of_the_policy(recompute: bool, passes: float, measured: Any) -> None:
    """A backward pass counts as two forward passes. What is made again is the first product of a
    block: nothing needs the result of its second one."""
    flops = measured["gpipe", 1, 24, recompute].flops - measured["gpipe", 1, 8, recompute].flops
    assert flops / 16 == pytest.approx(passes * 2 * BLOCK_FLOPS + HEAD_FLOPS, rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("recompute", "of_block"),
    # The input; without recomputation also tanh and its derivative.
    [(False, ACTIVATION_BYTES + 2 * HIDDEN_BYTES), (True, ACTIVATION_BYTES)],
)
def test_gpipe_keeps_what_the_policy_says(recompute: bool, of_block: int, measured: Any) -> None:
    memory = measured["gpipe", 1, 24, recompute].memory - measured["gpipe", 1, 8, recompute].memory
    assert memory / 16 == pytest.approx(2 * of_block + ACTIVATION_BYTES, rel=0.01)


@pytest.mark.slow
def test_memory_of_1f1b_does_not_grow_with_micro_batches(measured: Any) -> None:
    """It keeps what belongs to 2·p - 1 of them at most."""
    few, many = (measured["1f1b", 1, number, False].memory for number in (8, 24))
    assert many - few < ACTIVATION_BYTES
    assert few < measured["gpipe", 1, 8, False].memory
