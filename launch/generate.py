"""Continues a text with a trained model: `python -m launch.generate --checkpoint_dir=DIR`.

The checkpoint is read straight into the shardings of this program's mesh, which need not be that
of the training. The text goes to standard output as it is made.
"""

from pathlib import Path

from absl import flags

from launch.generator import generate_text
from launch.program import run
from models.sampling import Sampling

_SAMPLING = Sampling()

_CHECKPOINT_DIR = flags.DEFINE_string("checkpoint_dir", "runs/decoder", "Directory of the run.")
_MESH = flags.DEFINE_string(
    "mesh", None, "Device mesh such as data=1,model=2; default: fitted to the devices."
)
_PROMPT = flags.DEFINE_string("prompt", "The ", "Text to continue.")
_MAX_NEW_TOKENS = flags.DEFINE_integer("max_new_tokens", 400, "Bytes to make.", lower_bound=1)
_TEMPERATURE = flags.DEFINE_float(
    "temperature", 0.8, "Divides the logits; 0 = always the likeliest byte.", lower_bound=0.0
)
_TOP_K = flags.DEFINE_integer(
    "top_k", _SAMPLING.top_k, "Draw from the k likeliest bytes; 0 = all.", lower_bound=0
)
_TOP_P = flags.DEFINE_float(
    "top_p",
    _SAMPLING.top_p,
    "Draw from the fewest bytes that reach this probability.",
    lower_bound=1e-6,
    upper_bound=1.0,
)
_SEED = flags.DEFINE_integer("seed", 0, "Seed of the draws.", lower_bound=0)


def main() -> int:
    generate_text(
        Path(_CHECKPOINT_DIR.value),
        mesh=_MESH.value,
        prompt=_PROMPT.value,
        max_new_tokens=_MAX_NEW_TOKENS.value,
        sampling=Sampling(_TEMPERATURE.value, _TOP_K.value, _TOP_P.value),
        seed=_SEED.value,
    )
    return 0


if __name__ == "__main__":
    run(main)
