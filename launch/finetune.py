"""Tunes a model for a task: `python -m launch.finetune --task=sft --model=DIR --data=FILE`.

The model is a Hugging Face directory, or a config.json for random weights; an encoder gets the head
that the task needs. With --lora_rank low-rank adapters are trained beside frozen weights. At the
end the run directory holds `adapter-STEPS` in PEFT's layout, or `model-STEPS` in Hugging Face's.
Started again with the same directory it goes on from the newest checkpoint. Tasks, and what their
records hold:

"""

from pathlib import Path

from absl import flags

from launch.config import TrainConfig
from launch.finetuning.jobs import tuning_job
from launch.finetuning.settings import TuningSettings
from launch.finetuning.tasks import TASKS
from launch.program import run
from launch.run_flags import define_run_flags, run_of_flags
from launch.settings import define_flags, from_flags
from launch.trainer import run_job
from launch.training.schedules import ScheduleSettings

__doc__ = (__doc__ or "") + "\n".join(f"  {name}: {task.records}" for name, task in TASKS.items())

_RUN = TrainConfig(
    checkpoint_dir=Path("runs/finetuned"),
    batch_size=8,
    schedule=ScheduleSettings(learning_rate=1e-4, warmup_steps=10),
)


def _define_flags() -> None:
    flags.DEFINE_enum("task", None, list(TASKS), "What the model is tuned for.", required=True)
    flags.DEFINE_string(
        "model",
        None,
        "Hugging Face directory to start from, or a config.json for random weights.",
        required=True,
    )
    define_flags(TuningSettings())
    define_run_flags(_RUN)


def main() -> int:
    values = flags.FLAGS.flag_values_dict()
    settings, config = from_flags(TuningSettings, values), run_of_flags(_RUN, values)
    path = Path(values["model"])
    return run_job(lambda: tuning_job(values["task"], path, settings, config), config)


if __name__ == "__main__":
    _define_flags()
    run(main)
