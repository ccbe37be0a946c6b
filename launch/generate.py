"""Continues a text: `python -m launch.generate --checkpoint_dir=DIR`, or `--model=DIR`.

`--assistant_model=DIR` or `--prompt_lookup_num_tokens=N` guess several tokens at a time.

The weights of a run or of a Hugging Face directory are read straight into the shardings of this
program's mesh, which may differ from the training mesh. The text is streamed to standard output.
"""

from pathlib import Path

from absl import flags

from launch import sampling_flags
from launch.assistance import Assistance
from launch.errors import ModelError
from launch.generator import Writer, generate_text, load_directory, load_run
from launch.program import is_text, run
from models.assisted import MOST_GUESSES

_CHECKPOINT_DIR = flags.DEFINE_string("checkpoint_dir", "runs/decoder", "Directory of the run.")
_MODEL = flags.DEFINE_string(
    "model", None, "Hugging Face directory, instead of a run's checkpoint."
)
_MESH = flags.DEFINE_string(
    "mesh", None, "Device mesh such as data=1,model=2; default: fitted to the devices."
)
_PROMPT = flags.DEFINE_string("prompt", "The ", "Text to continue.")
_ASSISTANT = flags.DEFINE_string(
    "assistant_model",
    None,
    "Hugging Face directory of a smaller model with the same tokens, which guesses what follows; "
    "the text stays the same.",
)
_LOOKUP = flags.DEFINE_integer(
    "prompt_lookup_num_tokens",
    None,
    "Tokens that are guessed at a time from what the text said before; the text stays the same.",
    lower_bound=1,
    upper_bound=MOST_GUESSES,
)
_GUESSES = flags.DEFINE_integer(
    "num_assistant_tokens",
    5,
    "Tokens that the assistant model guesses at a time.",
    lower_bound=1,
    upper_bound=MOST_GUESSES,
)
_SCAN_LAYERS = flags.DEFINE_bool(
    "scan_layers",
    False,
    "Compile one block of --model for all: deep models start sooner, but write slower.",
)
flags.register_validator("prompt", is_text, "is not text in UTF-8")


def main() -> int:
    if _MODEL.value is None:
        writer = load_run(Path(_CHECKPOINT_DIR.value), _MESH.value)
    else:
        writer = load_directory(
            Path(_MODEL.value), _MESH.value, pad=True, scan_layers=_SCAN_LAYERS.value
        )
    generate_text(
        writer,
        prompt=_PROMPT.value,
        otherwise=sampling_flags.generation(),
        given=sampling_flags.given(),
        seed=flags.FLAGS.seed,
        assistance=_assistance(writer),
    )
    return 0


def _assistance(writer: Writer) -> Assistance | None:
    if _ASSISTANT.value is None:
        return None if _LOOKUP.value is None else Assistance(_LOOKUP.value)
    draft = load_directory(Path(_ASSISTANT.value), _MESH.value, pad=True)
    both = (writer, draft)
    texts = [reader.tokenizer.encode(_PROMPT.value, marks=True).tolist() for reader in both]
    sizes = [reader.model.config.vocab_size for reader in both]
    if texts[0] != texts[1] or sizes[0] != sizes[1]:
        raise ModelError(
            f"--assistant_model={_ASSISTANT.value} has {sizes[1]} tokens and reads the prompt as "
            f"{texts[1][:8]}, but the model has {sizes[0]} and reads it as {texts[0][:8]}. Give a "
            "model with the same tokenizer."
        )
    return Assistance(_GUESSES.value, draft.model)


if __name__ == "__main__":
    sampling_flags.define(temperature=0.8, max_new_tokens=400)
    run(main)
