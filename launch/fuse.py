"""Adds LoRA to a pipeline: `python -m launch.fuse --model=DIR --lora=FILE:SCALE,… --target=DIR`.

Reads a diffusers directory and writes another with the LoRA files merged into its weights. Nothing
is overwritten.
"""

from pathlib import Path

from absl import flags

from launch.loading import load_with_progress
from launch.meshes import make_mesh, parse_mesh
from launch.painter import with_loras
from launch.program import run, say
from models.diffusion.parts import load, save

_MODEL = flags.DEFINE_string("model", None, "Directory of the pipeline.", required=True)
_LORA = flags.DEFINE_list(
    "lora", None, "LoRA files from diffusers or kohya; FILE:SCALE scales one.", required=True
)
_TARGET = flags.DEFINE_string(
    "target", None, "Directory to write; it must be new or empty.", required=True
)
_MESH = flags.DEFINE_string(
    "mesh", "model=1", "Device mesh to hold the weights during the conversion."
)


def main() -> int:
    source = Path(_MODEL.value)
    pipeline = load(source, make_mesh(parse_mesh(_MESH.value)), load_part=load_with_progress)
    save(Path(_TARGET.value), with_loras(pipeline, _LORA.value), source)
    say(f"{_TARGET.value} holds the pipeline with {', '.join(_LORA.value)}")
    return 0


if __name__ == "__main__":
    run(main)
