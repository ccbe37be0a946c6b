"""Quantises a trained decoder: `python -m launch.quantise --out=DIR --weights=int8`.

Reads a run's latest checkpoint, or a Hugging Face directory (`--model`), and writes a Hugging Face
directory whose linear layers are stored in fewer bits, with a `quantization_config` in the format
of compressed-tensors. `launch.serve --model=DIR` and `launch.generate --model=DIR` can run it. A
report compares it with the original model in --dtype on held-out text: perplexity, logits and every
layer.
"""

from pathlib import Path

from absl import flags

from launch.data.config import DataConfig
from launch.program import run, say
from launch.quantisation.job import quantise_directory
from launch.quantisation.settings import QuantisationSettings
from launch.settings import define_flags, from_flags

_CHECKPOINT_DIR = flags.DEFINE_string("checkpoint_dir", "runs/main", "Directory of the run.")
_MODEL = flags.DEFINE_string(
    "model", None, "Hugging Face directory, instead of a run's checkpoint."
)
_OUT = flags.DEFINE_string(
    "out", None, "Directory to write; it must be new or empty.", required=True
)
_DTYPE = flags.DEFINE_enum(
    "dtype",
    "bfloat16",
    ["bfloat16", "float32"],
    "Data type of activations and of unquantized weights.",
)
_MESH = flags.DEFINE_string(
    "mesh", "model=1", "Device mesh to hold the weights during quantization."
)


def main() -> int:
    values = flags.FLAGS.flag_values_dict()
    accuracy = quantise_directory(
        None if _MODEL.value is None else Path(_MODEL.value),
        Path(_CHECKPOINT_DIR.value),
        Path(_OUT.value),
        from_flags(QuantisationSettings, values),
        from_flags(DataConfig, values),
        dtype=_DTYPE.value,
        mesh=_MESH.value,
    )
    print(accuracy.text())
    say(f"{_OUT.value} holds the quantised model, and quantisation.json the report")
    return 0


if __name__ == "__main__":
    define_flags(QuantisationSettings())
    define_flags(DataConfig())
    run(main)
