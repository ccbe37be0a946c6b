"""The prediction of every point, by its name: a table of small functions.

Kernels ran on one core while the others were idle.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from neuronjax.formats import BFLOAT16, FLOAT32
from neuronjax.machine.machine import Machine
from neuronjax.machine.specs import Engine
from neuronjax.program.control import SemaphoreEvent
from neuronjax.program.dma import DmaCopy
from neuronjax.program.element_types import ElementType
from neuronjax.program.operand import Access, Buffer, Memory, whole
from neuronjax.program.operators import Activation, AluOp, DescriptorMode
from neuronjax.program.program import Program, Target
from neuronjax.program.scalar_engine import Activate
from neuronjax.program.tensor_engine import Matmul
from neuronjax.program.vector_engine import TensorTensor
from neuronjax.timing.calibration import CALIBRATION, Calibration
from neuronjax.timing.cost import Cost, Transfer
from neuronjax.timing.encoding import Assumptions
from neuronjax.timing.network import Op, collective_time
from neuronjax.timing.platform import Platform
from neuronjax.timing.schedule import profile, schedule
from neuronjax.timing.table import cost_of
from neuronjax.timing.tensor_engine import load_stationary
from neuronjax.timing.timeline import KernelTime, Timeline
from neuronjax.timing.validation.measured_kernels import programs
from neuronjax.timing.validation.points import Point, nbytes

TRN1, TRN2 = "trainium1", "trainium2"


@dataclass(frozen=True, slots=True)
class Model:
    """The timing model with some constants."""

    calibration: Calibration = CALIBRATION

    def platform(self, chip: str) -> Platform:
        """The platform of one busy core of a chip."""
        return self.of(Program(name="p", target=Target(chip), body=()))

    def of(self, program: Program) -> Platform:
        """The platform of one busy core of the chip that a program is for."""
        return Platform.of(program, busy_cores=1, calibration=self.calibration)

    def timeline(self, name: str) -> Timeline:
        """A validation program in time."""
        program = programs()[name]
        return schedule(program, platform=self.of(program), assumptions=Assumptions())

    def kernel(self, name: str) -> KernelTime:
        """The only kernel of a validation program."""
        (kernel,) = self.timeline(name).kernels
        return kernel


def _tile(name: str, memory: Memory, dtype: ElementType, *shape: int) -> Access:
    return whole(Buffer(name=name, memory=memory, dtype=dtype, shape=shape))


def _sbuf(dtype: ElementType, *shape: int) -> Access:
    return _tile("t", Memory.SBUF, dtype, *shape)


def _matmul(model: Model, chip: str, dtype: ElementType, moving: int) -> Cost:
    product = Matmul(
        dst=_tile("p", Memory.PSUM, FLOAT32, 128, moving),
        stationary=_sbuf(dtype, 128, 128),
        moving=_sbuf(dtype, 128, moving),
    )
    return cost_of(product, model.platform(chip))


def _matmul_interval(model: Model) -> float:
    cost = _matmul(model, TRN2, FLOAT32, 512)
    return cost.issue_ns / cost.instructions


def _fp32_matmul(model: Model) -> float:
    return _matmul_interval(model) + _matmul(model, TRN2, FLOAT32, 512).latency_ns


def _bf16_matmul(model: Model) -> float:
    cost = _matmul(model, TRN1, BFLOAT16, 128)
    return cost.issue_ns + cost.latency_ns


def _load_stationary(model: Model) -> float:
    cost = load_stationary(1, model.platform(TRN1))
    return cost.issue_ns + cost.latency_ns


def _activation(model: Model, elements: int) -> float:
    tile = _sbuf(FLOAT32, 128, elements)
    instruction = Activate(dst=tile, op=Activation.COPY, data=tile)
    cost = cost_of(instruction, model.platform(TRN1))
    return cost.issue_ns + cost.latency_ns


def _tensor_tensor(model: Model) -> float:
    tile = _sbuf(FLOAT32, 128, 8192)
    instruction = TensorTensor(dst=tile, data1=tile, data2=tile, op=AluOp.ADD)
    cost = cost_of(instruction, model.platform(TRN1))
    return cost.issue_ns + cost.latency_ns


def _semaphore_event(model: Model) -> float:
    return cost_of(SemaphoreEvent(engine=Engine.SCALAR), model.platform(TRN1)).issue_ns


def _load(
    model: Model,
    chip: str,
    *shape: int,
    dtype: ElementType = BFLOAT16,
    mode: DescriptorMode = DescriptorMode.STATIC,
) -> Transfer:
    """A load of rows into SBUF."""
    instruction = DmaCopy(
        dst=_sbuf(dtype, *shape), src=_tile("h", Memory.HBM, dtype, *shape), descriptors=mode
    )
    transfer = cost_of(instruction, model.platform(chip)).transfer
    assert transfer is not None
    return transfer


def _dma(chip: str, *shape: int) -> Callable[[Model], float]:
    """Time on one DMA engine."""
    return lambda model: _load(model, chip, *shape).engine_ns


def _whole_load(model: Model) -> float:
    """The time from trigger to signal."""
    load = _load(model, TRN1, 128, 512, dtype=FLOAT32)
    return load.start_ns + load.engine_ns + load.completion_ns


def _trigger_to_activation(model: Model) -> float:
    events = profile(programs()["round_trip"], "round_trip", platform=model.platform(TRN2))
    trigger = next(
        event for event in events if (event.mnemonic, event.lane) == ("dma_copy", "gpsimd")
    )
    activation = next(event for event in events if event.mnemonic == "activation")
    return activation.start_ns - trigger.end_ns


Prediction = Callable[[Model], float]

PREDICTIONS: Mapping[str, Prediction] = {
    "K1 total": lambda model: model.timeline("matmul").total_ns,
    "K1 PE": lambda model: model.kernel("matmul").busy_ns["tensor"],
    "K1 Vector": lambda model: model.kernel("matmul").busy_ns["vector"],
    "K1 DMA": lambda model: model.kernel("matmul").dma_active_ns,
    "K1 MATMULs": lambda model: model.timeline("matmul").hardware_instructions["tensor"],
    "K2 latency": _fp32_matmul,
    "K2 interval": _matmul_interval,
    "K3": _bf16_matmul,
    "K4": _load_stationary,
    "K5 latency": lambda model: _activation(model, 1),
    "K5 interval": lambda model: _activation(model, 1) + model.calibration.wake_ns,
    "K6": _tensor_tensor,
    "K7": lambda model: _activation(model, 8192),
    "K8": _semaphore_event,
    # 32 KiB on each of 16 engines: four rows of 8 KiB, sixteen times.
    "K9": _dma(TRN1, 64, 4096),
    "K10 table": lambda model: model.calibration.activation_table_ns,
    "K10 prologue": lambda model: model.calibration.prologue_ns[2],
    "K10 epilogue": lambda model: model.calibration.epilogue_ns[2],
    "K10 total": lambda model: model.timeline("exp").total_ns,
    "K11": _dma(TRN2, 64, 4096),
    "K12": _dma(TRN2, 128, 128),
    "K13 load": _trigger_to_activation,
    "K13 store": lambda model: _load(model, TRN2, 128, 128, mode=DescriptorMode.SOFTWARE).start_ns,
    "K14 total": lambda model: model.timeline("mamba").total_ns,
    "K14 Vector": lambda model: model.kernel("mamba").busy_ns["vector"],
    "K15 FP32": lambda model: model.timeline("attention FP32").total_ns,
    "K15 BF16": lambda model: model.timeline("attention BF16").total_ns,
    "K16": lambda model: model.timeline("empty").total_ns,
    "K17": _whole_load,
}
"""Name of a kernel's point -> prediction."""


def _all_reduce(target: str, ranks: int) -> Callable[[Model, Point], float]:
    """The time of an all-reduce as the older tool measured it: with its launch, and in releases
    whose rings within an instance took longer for a step than rings do today."""
    machine = Machine.create(target)
    today = _collective(Op.ALL_REDUCE, target, ranks)
    steps = 2 * (min(ranks, machine.core_count) - 1)

    def predicted(model: Model, point: Point) -> float:
        calibration = model.calibration
        least = steps * calibration.benchmark_step_ns
        return calibration.benchmark_launch_ns + max(today(model, point), least)

    return predicted


def _collective(op: Op, target: str, ranks: int) -> Callable[[Model, Point], float]:
    machine = Machine.create(target)

    def predicted(model: Model, point: Point) -> float:
        size, calibration = nbytes(point), model.calibration
        return collective_time(op, size, ranks, machine, calibration=calibration).total_ns

    return predicted


COLLECTIVES: Mapping[str, Callable[[Model, Point], float]] = {
    # Two cores of one chip; two instances.
    "all-reduce": _all_reduce("trn1.2xlarge", 2),
    "all-reduce-16": _all_reduce("trn1.32xlarge", 16),
    "all-reduce-64": _all_reduce("trn1.32xlarge", 64),
    "all-gather": _collective(Op.ALL_GATHER, "trn1.32xlarge", 32),
    "all-gather-8": _collective(Op.ALL_GATHER, "trn1.32xlarge", 8),
}
"""First word of a collective's point -> prediction."""


def predict(point: Point, model: Model) -> float:
    """Predicts a point, in the point's unit."""
    if point.name in PREDICTIONS:
        return PREDICTIONS[point.name](model)
    return COLLECTIVES[point.name.split(" ", 1)[0]](model, point)
