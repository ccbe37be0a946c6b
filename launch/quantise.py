"""Quantises a trained decoder: `python -m launch.quantise --out=DIR --weights=int8`.

Reads a run's newest checkpoint, or a Hugging Face directory (`--model`), and writes a Hugging Face
directory whose linear maps are stored in fewer bits, with a `quantization_config` as
compressed-tensors has it. `launch.serve --model=DIR` and `launch.generate --model=DIR` run it. The
report compares it with the model in --dtype on held-out text: perplexity, logits, every layer.
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
    "model", None, "Hugging Face directory, instead of the checkpoint of a run."
)
_OUT = flags.DEFINE_string("out", None, "Directory to write; new or empty.", required=True)
_DTYPE = flags.DEFINE_enum(
    "dtype",
    "bfloat16",
    ["bfloat16", "float32"],
    "Type of activations and of weights that are not quantized.",
)
_MESH = flags.DEFINE_string(
    "mesh", "model=1", "Device mesh that holds the weights in the meantime."
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
