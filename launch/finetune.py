"""Tunes a model for a task: `python -m launch.finetune --task=sft --model=DIR --data=FILE`.

The model is a Hugging Face directory, or a config.json for random weights; an encoder gets the head
that the task needs. With --preset, the settings are those of a published run; without --model, so
is the model, with random weights. With --lora_rank, low-rank adapters are trained and the other
weights are frozen. At the end, the run directory holds `adapter-STEPS` in PEFT's layout, or
`model-STEPS` in Hugging Face's. Run again with the same directory, it resumes from the latest
checkpoint. The tasks and the fields of their records:

"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from absl import flags

from launch.config import TrainConfig
from launch.errors import SettingsError
from launch.estimates import define_estimate_flags, print_estimate, tuning_work
from launch.finetuning.jobs import tuned_at_depth, tuning_job
from launch.finetuning.settings import TuningSettings
from launch.finetuning.tasks import TASKS
from launch.job import Job
from launch.presets.choice import HELP, listing
from launch.presets.flags import chosen, define_preset_flags
from launch.processes import done_by_first
from launch.program import run
from launch.run_file import write_json, write_run_file
from launch.run_flags import define_run_flags, run_of_flags, setting_names
from launch.settings import define_flags, from_flags, names_of
from launch.trainer import run_job
from launch.training.schedules import ScheduleSettings
from models.weights.fields import CONFIG_FILE

__doc__ = (__doc__ or "") + "\n".join(f"  {name}: {task.records}" for name, task in TASKS.items())

_RUN = TrainConfig(
    checkpoint_dir=Path("runs/finetuned"),
    batch_size=8,
    schedule=ScheduleSettings(learning_rate=1e-4, warmup_steps=10),
)


def _define_flags() -> None:
    flags.DEFINE_enum("task", None, list(TASKS), "Task to tune the model for.")
    flags.DEFINE_string(
        "model",
        None,
        "Hugging Face directory to start from, or a config.json for random weights; default: the "
        "preset's model, with random weights.",
    )
    define_preset_flags()
    define_estimate_flags()
    define_flags(TuningSettings())
    define_run_flags(_RUN)


def main() -> int:
    if flags.FLAGS.preset == HELP:
        print(listing())
        return 0
    values, choice = chosen(os.environ, tunes=True)
    values["task"] = values["task"] or choice.task
    fields = choice.model if values["model"] is None else None
    if values["task"] is None or (values["model"] is None and fields is None):
        raise SettingsError(
            "give --task and --model, or --preset; --preset=help lists the presets."
        )
    settings, config = from_flags(TuningSettings, values), run_of_flags(_RUN, values)
    if values["estimate"] or values["explain_mesh"]:
        with _model(values, fields) as path:
            job = tuning_job(values["task"], path, settings, config)
            at_depth = partial(tuned_at_depth, values["task"], path, settings, config)
            return print_estimate(tuning_work(job, at_depth, config), config, choice.recipe, values)

    def job_of_run() -> Job:
        path = _model_file(config, fields) if fields is not None else Path(values["model"])
        return tuning_job(values["task"], path, settings, config)

    names = {*setting_names(_RUN), *names_of(TuningSettings), "task", "model"}
    started = partial(
        write_run_file,
        settings={name: values[name] for name in sorted(names)},
        model=fields,
        environment=choice.environment,
    )
    return run_job(job_of_run, config, started)


@contextmanager
def _model(values: Mapping[str, Any], fields: Mapping[str, Any] | None) -> Iterator[Path]:
    """The model where nothing is to be written to the run directory."""
    if fields is None:
        yield Path(values["model"])
        return
    with TemporaryDirectory() as folder:
        file = Path(folder) / CONFIG_FILE
        write_json(file, fields)
        yield file


def _model_file(config: TrainConfig, fields: Mapping[str, Any]) -> Path:
    """The preset's model as a file in the run directory."""
    file = config.checkpoint_dir / "base" / CONFIG_FILE
    done_by_first(lambda: write_json(file, fields))
    return file


if __name__ == "__main__":
    _define_flags()
    run(main)
