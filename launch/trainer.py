"""A training run from its start, or from its latest checkpoint, to its end."""

import json
import math
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import jax
import optax
from jax.sharding import Mesh

from launch import checkpoints, draws
from launch.checkpoints.layers import convert, separate
from launch.config import TrainConfig
from launch.data.batches import held_out_batches, make_batches, select
from launch.data.placement import Placement
from launch.errors import CheckpointError, DivergenceError
from launch.interrupts import StopRequest, stop_requests
from launch.job import Job, language_job
from launch.meshes import check_window
from launch.monitoring import Monitor
from launch.processes import announce, death_of_others, done_by_first, is_first, largest, whole
from launch.simulated import DeviceTime, device_time
from launch.source import Source
from launch.text import copy_companions
from launch.training.memory import CoreMemory, check_arguments, check_memory
from launch.training.optimizers import make_optimizer
from launch.training.parallelism import Parallelism
from launch.training.platform import check_platform, compiler_options
from launch.training.schedules import make_schedule
from launch.training.state import TrainState
from launch.training.step import Training, make_training
from models.decoder.config import DecoderConfig
from models.decoder.flops import training_flops
from models.parallel.depth import unstack
from models.parameters import Parameters

OF_PRECISION = ("dtype", "param_dtype")
"""Fields of a model's config that a resumed run may change: they follow from the precision."""

Value = TypeVar("Value")
Started = Callable[[Path], None]  # is given the run directory


def train(source: Source, config: TrainConfig, started: Started = lambda directory: None) -> int:
    """Trains a decoder on text; see `run_job`."""
    return run_job(lambda: language_job(source, config), config, started)


def run_job(
    make_job: Callable[[], Job], config: TrainConfig, started: Started = lambda directory: None
) -> int:
    """Trains until `config.steps`, or for as many epochs as requested, resuming from the latest
    sound checkpoint; returns the exit code: 0, or 130 (143) when SIGINT (SIGTERM) asked to stop
    after a step.

    `started` is called by the first process once it is clear that the run may start: it may write
    files.

    Raises LaunchError for anything the user can fix.
    """
    with death_of_others(), ExitStack() as stack:
        done_by_first(lambda: _lock(stack, config))
        stop = stack.enter_context(stop_requests())
        job = make_job()
        config = _with_steps(config, job)
        run = Run(job, config)
        try:
            done_by_first(lambda: started(config.checkpoint_dir))
            run.train_on(stop)
        finally:
            run.close()
        if stop.signal_number:
            announce(_farewell(run.step, config))
            return stop.exit_code
    return 0


class Run:
    """A run between two steps: its state, its position in the data, and its files."""

    def __init__(self, job: Job, config: TrainConfig) -> None:
        self._config, self._job, self._data = config, job, job.data
        self._identity = _identity(job, config)
        parallelism = config.parallelism.on(
            config.mesh, jax.device_count(), job.model.config, config.batch_size
        )
        self._mesh = parallelism.mesh(jax.devices())
        check_window(self._mesh, job.row_length)
        check_platform(config.precision.resolve())
        self._schedule = make_schedule(config.schedule, config.steps)
        self._training = _training(job, config, parallelism, self._mesh, self._schedule)
        self._placement = Placement(self._training.batch, self._training.batch_shardings)
        self._batches = make_batches(self._data.rows, config.batch_size, self._placement.rows)
        self.step = self._position()
        device, memory = self._mesh.local_devices[0], None
        if config.check_memory:
            check_arguments(self._training, device)
        self._step = self._compiled_step()
        if config.check_memory:
            memory = check_memory(self._training, self._step, device)
        self._state = self._restore_state() if self.step else self._first_state()
        # Only now, so that a run that may not start changes nothing.
        self._open_files(memory)
        announce(self._description())

    def _open_files(self, memory: CoreMemory | None) -> None:
        """Checkpoints and records of this run, which needs so much memory, if that was checked."""
        config, job, directory = self._config, self._job, self._config.checkpoint_dir
        self._writer = checkpoints.CheckpointWriter(
            directory, checkpoints.Retention(config.keep, config.keep_every)
        )
        self._monitor = Monitor(
            directory,
            config.monitor,
            last_step=self.step,
            steps=config.steps,
            tokens_per_step=config.batch_size * job.texts * job.row_length,
            on_device=self._device_time() if config.monitor.device_time else None,
            memory="" if memory is None else str(memory),
            quiet=not is_first(),
        )
        self._saved_step = self.step
        if is_first():
            copy_companions(job.files, directory)
        self._monitor.write(self.step, asdict(self._data.counts))

    def _device_time(self) -> DeviceTime | None:
        """A step's time on the device, with the MFU of decoders that are trained whole on text as
        everybody counts it, and of others by the products of the program."""
        job, flops = self._job, None
        if isinstance(job.model.config, DecoderConfig) and job.trained is None:
            rows = self._config.batch_size * job.texts
            flops = training_flops(job.model.config, rows, job.row_length) / self._mesh.size
        return device_time(self._step, flops)

    def train_on(self, stop: StopRequest) -> None:
        """Runs steps until the last one or until asked to stop; saves, evaluates and prints."""
        config = self._config
        while self.step < config.steps and not _agree_on_stop(stop):
            self._take_step()
            self._writer.check()
            if self.step % config.checkpoint_every == 0:
                self._save()
            self._watch(stop)
        self._save()
        if self.step >= config.steps:
            self._evaluate()
        self._monitor.close()
        if self.step >= config.steps:
            self._by_first(self._job.finish, self._state.evaluated)
        if is_first():
            print(self._monitor.summary(), flush=True)

    def _watch(self, stop: StopRequest) -> None:
        """Evaluates and samples where that is due and nobody waits for the run to stop: compiling
        alone may take longer than a machine that is taken away leaves."""
        step, every = self.step, self._config.monitor.sample_every
        evaluates = step % self._config.eval_every == 0 and step < self._config.steps
        samples = every is not None and step % every == 0
        if not (evaluates or samples) or _agree_on_stop(stop):
            return
        if evaluates:
            self._evaluate()
        if samples:
            text = self._by_first(self._job.sample, self._state.parameters)
            self._monitor.sample(step, text)

    def close(self) -> None:
        """Waits for pending saves and closes the files."""
        self._monitor.close()
        self._writer.close()

    def _position(self) -> int:
        """The step of the newest checkpoint, with the data after it; 0 if there is none."""
        directory = self._config.checkpoint_dir
        step = done_by_first(lambda: checkpoints.newest(directory, move_aside=True))
        if step is None:
            return 0
        record = done_by_first(lambda: checkpoints.read_record(directory, step))
        _check_identity(record, self._identity, self._config)
        self._batches.set_state(record["position"])
        return step

    def _restore_state(self) -> TrainState:
        training = self._training
        target = checkpoints.abstract(training.state, training.shardings)
        return checkpoints.restore_state(
            self._config.checkpoint_dir, self.step, target, training.start, training.order
        )

    def _compiled_step(self) -> jax.stages.Compiled:
        lowered = self._training.step.lower(self._training.state, self._training.batch)
        return lowered.compile(compiler_options=compiler_options(self._mesh.local_devices[0]))

    def _first_state(self) -> TrainState:
        if self._job.first_weights is None:
            with draws.without_threefry_warning():
                return self._training.init()
        target, _ = self._training.arguments
        order = self._training.order
        single = separate(target.parameters, order)
        weights = self._job.first_weights(self._job.model, self._mesh, single)
        return self._training.start(convert(weights, target.parameters, order=order))

    def _by_first(
        self, function: Callable[[Parameters, int], Value], parameters: Parameters
    ) -> Value:
        """What the first process makes of all parameters, those of blocks one by one, and the
        number of the step."""
        single = whole(unstack(parameters, self._training.order))
        return done_by_first(lambda: function(single, self.step))

    def _take_step(self) -> None:
        """Takes an optimizer step. Raises DivergenceError if what it gives is not finite."""
        with self._monitor.step(self.step + 1) as report:
            batch = self._placement.place(next(self._batches))
            self._state, values = self._step(self._state, batch)
            report |= {name: float(value) for name, value in values.items()}
            if not all(map(math.isfinite, report.values())):
                raise DivergenceError(
                    f"step {self.step + 1} gave loss {report['loss']} and gradient norm "
                    f"{report['grad_norm']} and is not saved. The latest checkpoint in "
                    f"{self._config.checkpoint_dir} is step {self._saved_step}. Lower "
                    "--learning_rate or raise --warmup_steps."
                )
            report["learning_rate"] = float(self._schedule(self.step))
            self.step += 1

    def _evaluate(self) -> None:
        """Mean loss over all that is held out."""
        losses = [
            self._training.evaluate(
                self._state, self._placement.place(select(batch, self._placement.rows))
            )
            for batch in held_out_batches(self._data.held_out, self._config.batch_size)
        ]
        if not losses:
            self._monitor.tell(f"step {self.step}: there is no held-out data to evaluate")
            return
        # 1: where results are zeros, as under `neuronjax lint`.
        weight = sum(float(batch.weight) for batch in losses) or 1.0
        metrics = {
            name: sum(float(batch.metrics[name]) for batch in losses) / weight
            for name in losses[0].metrics
        }
        loss = sum(float(batch.total) for batch in losses) / weight
        unit = self._job.loss_unit or f"nats per {self._job.unit}"
        self._monitor.evaluation(self.step, loss, unit, metrics)

    def _description(self) -> str:
        parameters = self._training.state.parameters.values()
        count = sum(math.prod(array.shape) for array in parameters)
        sizes = ",".join(f"{axis}={size}" for axis, size in self._mesh.shape.items())
        return (
            f"{count:,} parameters on {self._mesh.devices.flat[0].platform} mesh {sizes}; "
            f"{self._data.size:,} {self._job.unit}s to train on in "
            f"{self._data.counts}; "
            f"{'starting' if self.step == 0 else f'resuming after step {self.step}'}"
        )

    def _save(self) -> None:
        if self._saved_step == self.step:
            return
        record = {
            **self._identity,
            **self._job.record,
            "config_json": dict(self._job.model.fields.values),
            "position": self._batches.get_state(),
            checkpoints.ORDER: self._training.order,
        }
        self._writer.save(self.step, checkpoints.items(self._state), record)
        self._saved_step = self.step


def _identity(job: Job, config: TrainConfig) -> dict[str, dict[str, Any]]:
    """What a checkpoint must have in common with a run that continues it."""
    model = job.model
    return {
        "model": as_json({"architecture": model.architecture.name} | asdict(model.config)),
        "data": {
            **job.data.identity,
            **job.identity,
            "batch_size": config.batch_size,
            "seed": config.seed,
            "seq_len": job.row_length,
        },
        "optimizer": config.optimizer_settings(),
    }


def _training(
    job: Job, config: TrainConfig, parallelism: Parallelism, mesh: Mesh, schedule: optax.Schedule
) -> Training:
    """The functions of a run."""
    return make_training(
        job.model,
        partial(make_optimizer, config.optimizer, schedule),
        parallelism,
        config.precision.resolve(),
        mesh=mesh,
        batch=job.data.shapes(config.batch_size),
        objective=job.objective,
        router=config.router,
        dropout=config.dropout,
        kernels=config.kernels,
        trained=job.trained,
        clip_norm=config.clip_norm or None,
        ema_decay=config.optimizer.ema_decay,
        seed=config.seed,
    )


def _agree_on_stop(stop: StopRequest) -> int:
    """The signal that asked any process to stop, and now asks all; 0 if none did."""
    number = largest(stop.signal_number)
    if number:  # one may have come to this process in the meantime, for the next step
        stop.signal_number = number
    return number


def _with_steps(config: TrainConfig, job: Job) -> TrainConfig:
    """The config with as many steps as its passes through the data have, if it asks for passes."""
    if config.num_train_epochs is None:
        return config
    rows = job.data.rows_of_epoch()
    steps = max(1, math.ceil(config.num_train_epochs * rows / config.batch_size))
    announce(
        f"{config.num_train_epochs:g} epochs of {rows:,} rows are {steps:,} steps of "
        f"{config.batch_size}"
    )
    return replace(config, steps=steps)


def _lock(stack: ExitStack, config: TrainConfig) -> None:
    stack.enter_context(checkpoints.RunLock(config.checkpoint_dir))


def as_json(record: dict[str, Any]) -> dict[str, Any]:
    """The record as it comes back from a checkpoint: tuples are lists."""
    values: dict[str, Any] = json.loads(json.dumps(record))
    return values


def _farewell(step: int, config: TrainConfig) -> str:
    if step == 0:
        return "stopped before the first step was complete; there is nothing to save"
    return (
        f"stopped after step {step}; checkpoint {step} is saved in {config.checkpoint_dir}. Run "
        "the same command to continue."
    )


def _check_identity(
    record: dict[str, Any], identity: dict[str, dict[str, Any]], config: TrainConfig
) -> None:
    """Raises CheckpointError if the checkpoint is of another model or other data; reports
    changed optimizer settings."""
    changed = {
        part: [
            f"{name} was {record.get(part, {}).get(name)}, now {value}"
            for name, value in values.items()
            if name not in OF_PRECISION and record.get(part, {}).get(name) != value
        ]
        for part, values in identity.items()
    }
    if changed["model"] or changed["data"]:
        raise CheckpointError(
            f"the checkpoints in {config.checkpoint_dir} belong to another run: "
            f"{'; '.join(changed['model'] + changed['data'])}. Use its settings to continue it, "
            "or another --checkpoint_dir to start a new run."
        )
    stored, wanted = record.get("optimizer", {}).get("optimizer"), config.optimizer.optimizer
    if stored != wanted:
        raise CheckpointError(
            f"the checkpoints in {config.checkpoint_dir} hold the state of --optimizer={stored}, "
            f"which --optimizer={wanted} cannot use. Continue with --optimizer={stored}, or give "
            "another --checkpoint_dir."
        )
    if changed["optimizer"]:
        announce(f"WARNING: resuming with other settings: {'; '.join(changed['optimizer'])}")
