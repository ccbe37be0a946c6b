"""Converts checkpoints: `python -m launch.convert --source=DIR --target=DIR`.

A Hugging Face directory, of a model for any task, becomes a run directory with an orbax checkpoint
(step 0); a run directory becomes a Hugging Face directory. Nothing is overwritten.
"""

from pathlib import Path

from absl import flags

from launch.converter import convert
from launch.program import run

_SOURCE = flags.DEFINE_string("source", None, "Directory to read.", required=True)
_TARGET = flags.DEFINE_string(
    "target", None, "Directory to write; it must be new or empty.", required=True
)
_MESH = flags.DEFINE_string(
    "mesh",
    None,
    "Device mesh to hold the weights during conversion; default: fitted to the devices.",
)


def main() -> int:
    convert(Path(_SOURCE.value), Path(_TARGET.value), _MESH.value)
    return 0


if __name__ == "__main__":
    run(main)
