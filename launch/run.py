"""Runs a checkpoint in the Hugging Face layout: `python -m launch.run --model=DIR --input="…"`.

The architecture in its config.json determines the task, unless --task is given. The weights are
read straight into the shardings of the mesh, on the platform that JAX_PLATFORMS selects.
"""

from pathlib import Path

from absl import flags

from launch import sampling_flags
from launch.program import is_text, run
from launch.tasks.table import ALIASES, TASKS, run_checkpoint
from launch.tasks.task import Request
from models.weights.fields import DTYPES

_MODEL = flags.DEFINE_string("model", None, "Directory of the checkpoint.", required=True)
_TASK = flags.DEFINE_enum(
    "task",
    None,
    sorted([*TASKS, *ALIASES]),
    "Task to run; default: the one that the architecture is made for.",
)
_INPUT = flags.DEFINE_string(
    "input",
    None,
    "; ".join(f"{task.name}: {task.input}" for task in TASKS.values()),
    required=True,
)
flags.register_validator("input", is_text, "is not text in UTF-8")
_MESH = flags.DEFINE_string(
    "mesh", None, "Device mesh such as data=1,model=2; default: fitted to the devices."
)
_DTYPE = flags.DEFINE_enum(
    "dtype", None, DTYPES, "Data type of weights and activations; default: the checkpoint's."
)
_SCAN_LAYERS = flags.DEFINE_bool(
    "scan_layers",
    False,
    "Compile one block of the model for all: deep models start sooner, but generate slower.",
)
_STEPS = flags.DEFINE_integer(
    "steps", None, "Number of denoising steps; default: the model's.", lower_bound=1
)
_STRENGTH = flags.DEFINE_float(
    "strength", None, "How much to change the image, from 0 to 1; default: the model's."
)
_GUIDANCE = flags.DEFINE_float(
    "guidance",
    None,
    "Guidance scale: how closely an image follows its prompt; default: the model's.",
)
_LORA = flags.DEFINE_list(
    "lora", [], "LoRA files for a pipeline, from diffusers or kohya; FILE:SCALE scales one."
)
_CONTROLNET = flags.DEFINE_string("controlnet", None, "Directory of a ControlNet for the pipeline.")
_CONTROL = flags.DEFINE_string("control", None, "Conditioning image for the ControlNet.")
_IP_ADAPTER = flags.DEFINE_string(
    "ip_adapter",
    None,
    "IP-Adapter for the pipeline: a safetensors file, beside which (or in the pipeline) stands its "
    "`image_encoder`.",
)
_IMAGE_PROMPT = flags.DEFINE_string("image_prompt", None, "Image for the IP-Adapter.")
_IMAGE_PROMPT_SCALE = flags.DEFINE_float(
    "image_prompt_scale", 1.0, "How much the IP-Adapter's image counts."
)
_CONTROL_SCALE = flags.DEFINE_float("control_scale", 1.0, "Conditioning scale of the ControlNet.")


def main() -> int:
    request = Request(
        directory=Path(_MODEL.value),
        input=_INPUT.value,
        mesh=_MESH.value,
        dtype=_DTYPE.value,
        scan_layers=_SCAN_LAYERS.value,
        generation=sampling_flags.generation(),
        given=sampling_flags.given(),
        seed=flags.FLAGS.seed,
        steps=_STEPS.value,
        guidance=_GUIDANCE.value,
        strength=_STRENGTH.value,
        loras=_LORA.value,
        controlnet=_path(_CONTROLNET.value),
        control=_path(_CONTROL.value),
        control_scale=_CONTROL_SCALE.value,
        ip_adapter=_path(_IP_ADAPTER.value),
        image_prompt=_path(_IMAGE_PROMPT.value),
        image_prompt_scale=_IMAGE_PROMPT_SCALE.value,
    )
    run_checkpoint(request, _TASK.value)
    return 0


def _path(value: str | None) -> Path | None:
    return None if value is None else Path(value)


if __name__ == "__main__":
    sampling_flags.define(temperature=0.0, max_new_tokens=64)
    run(main)
