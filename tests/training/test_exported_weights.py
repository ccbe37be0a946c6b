"""What a run leaves behind is what was trained: averaged, quantized, merged, block by block."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from launch import checkpoints
from launch.config import TrainConfig
from launch.converter import convert
from launch.data.config import DataConfig
from launch.finetuning.jobs import tuning_job
from launch.finetuning.settings import TuningSettings
from launch.generator import load_run
from launch.job import Job, language_job
from launch.meshes import choose_mesh
from launch.source import byte_level
from launch.trainer import run_job, train
from launch.training.parallelism import Parallelism
from launch.training.parameter_kinds import Kind, kind_of
from models import pretrained
from models.decoder.families import llama_json
from models.parameters import Parameters, merge
from tests.launch.programs import CONFIG, SOURCE, config
from tests.training.presets import PAIRS, TALKS


@pytest.mark.slow
def test_weights_of_quantization_aware_training(tmp_path: Path) -> None:
    run = config(tmp_path, steps=2, precision="qat_int8", ema_decay=0.5)
    assert train(SOURCE, run) == 0
    exported = load_run(tmp_path, None).model
    target = exported.parameters
    step = checkpoints.newest(tmp_path, move_aside=False)
    assert step == 2
    average = checkpoints.restore(tmp_path, step, checkpoints.AVERAGE, target)
    weights = checkpoints.restore(tmp_path, step, checkpoints.PARAMETERS, target)
    for path, found in exported.parameters.items():
        kept = np.asarray(average[path], np.float64)
        assert not np.array_equal(kept, weights[path]), path
        if kind_of(path) is not Kind.MATRIX:
            np.testing.assert_array_equal(found, kept, err_msg=path)
            continue
        # One scale for each output: heads and their numbers, or the width.
        axes = (0, 1) if path.endswith("output.kernel") else (0,)
        scale = np.abs(kept).max(axes, keepdims=True) / 127
        np.testing.assert_allclose(found, np.round(kept / scale) * scale, rtol=1e-5, err_msg=path)


DEEP = replace(CONFIG, num_layers=2)
TOKENS = np.arange(32, dtype=np.int32)[None] * 7 % 256


def tuned(task: str, records: list[dict[str, str]], **settings: object) -> "MakeJob":
    """A task of fine-tuning for a random model."""

    def make(folder: Path, config: TrainConfig) -> Job:
        (folder / "config.json").write_text(json.dumps(llama_json(DEEP)))
        data = folder / "records.jsonl"
        data.write_text("".join(json.dumps(record) + "\n" for record in records))
        settings_of_task = TuningSettings(**settings)  # type: ignore[arg-type]
        config = replace(config, data=DataConfig(data=str(data)))
        return tuning_job(task, folder / "config.json", settings_of_task, config)

    return make


MakeJob = Callable[[Path, TrainConfig], Job]


@dataclass(frozen=True)
class Case:
    """A run, and how it is shared."""

    make: MakeJob = lambda folder, config: language_job(byte_level(DEEP), config)
    parallelism: dict[str, object] = field(default_factory=dict)


CASES = {
    "stacks": Case(parallelism={"scan_layers": True, "zero_1": True}),
    "pipeline": Case(
        parallelism={"pipeline_parallel_size": 2, "pipeline_parallel_num_microbatches": 2}
    ),
    "adapters in stacks": Case(
        tuned("sft", TALKS, lora_rank=4, target_modules="q_proj,down_proj"),
        {"scan_layers": True},
    ),
    "direct preference, in stacks": Case(tuned("dpo", PAIRS), {"scan_layers": True}),
    "direct preference, adapters": Case(
        tuned("dpo", PAIRS, lora_rank=4), {"tensor_parallel_size": 2}
    ),
    "odds ratio, fully sharded": Case(tuned("orpo", PAIRS), {"fully_sharded_size": 2}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_run_as_safetensors(tmp_path: Path, name: str) -> None:
    case, kept, jobs = CASES[name], list[Parameters](), list[Job]()
    directory, target = tmp_path / "run", tmp_path / "converted"
    run = config(directory, steps=2, learning_rate=0.1, warmup_steps=0)
    run = replace(run, parallelism=Parallelism(**case.parallelism))  # type: ignore[arg-type]

    def keep(parameters: Parameters, step: int) -> None:
        del step
        kept.append(parameters)

    def make_job() -> Job:
        jobs.append(replace(case.make(tmp_path, run), finish=keep))
        return jobs[0]

    assert run_job(make_job, run) == 0
    convert(directory, target, None)
    model = jobs[0].model
    graph, _ = model.architecture.abstract(model.config)
    expected = merge(graph, kept[0])(jnp.asarray(TOKENS))
    mesh = choose_mesh("data=1,model=1", model.config, 1)
    loaded = pretrained.load(target, mesh, dtype="float32", param_dtype="float32")
    got = merge(loaded.graph, loaded.parameters)(jnp.asarray(TOKENS))
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)
