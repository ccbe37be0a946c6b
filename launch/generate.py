"""Continues a text: `python -m launch.generate --checkpoint_dir=DIR`, or `--model=DIR`.

The weights of a run or of a Hugging Face directory are read straight into the shardings of this
program's mesh, which may differ from the training mesh. The text is streamed to standard output.
"""

from pathlib import Path

from absl import flags

from launch import sampling_flags
from launch.generator import generate_text, load_directory, load_run
from launch.program import is_text, run

_CHECKPOINT_DIR = flags.DEFINE_string("checkpoint_dir", "runs/decoder", "Directory of the run.")
_MODEL = flags.DEFINE_string(
    "model", None, "Hugging Face directory, instead of a run's checkpoint."
)
_MESH = flags.DEFINE_string(
    "mesh", None, "Device mesh such as data=1,model=2; default: fitted to the devices."
)
_PROMPT = flags.DEFINE_string("prompt", "The ", "Text to continue.")
flags.register_validator("prompt", is_text, "is not text in UTF-8")


def main() -> int:
    if _MODEL.value is None:
        writer = load_run(Path(_CHECKPOINT_DIR.value), _MESH.value)
    else:
        writer = load_directory(Path(_MODEL.value), _MESH.value, pad=True)
    generate_text(
        writer,
        prompt=_PROMPT.value,
        otherwise=sampling_flags.generation(),
        given=sampling_flags.given(),
        seed=flags.FLAGS.seed,
    )
    return 0


if __name__ == "__main__":
    sampling_flags.define(temperature=0.8, max_new_tokens=400)
    run(main)
