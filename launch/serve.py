"""Serves a model by OpenAI's API: `python -m launch.serve --checkpoint_dir=DIR`, or `--model=DIR`.

The weights of a run, or of a Hugging Face directory, are read straight into the shardings of this
program's mesh. Every bucket is compiled before the first request is taken. What is served follows
from the model: text, vectors, classes.
"""

from pathlib import Path

from absl import flags

from launch.program import run
from launch.serving.asked import Asked
from launch.serving.config import EngineConfig, ModelNames, ServerConfig
from launch.serving.kinds import serve
from launch.settings import define_flags, from_flags

_CHECKPOINT_DIR = flags.DEFINE_string("checkpoint_dir", "runs/main", "Directory of the run.")
_MODEL = flags.DEFINE_string(
    "model", None, "Hugging Face directory, instead of the checkpoint of a run."
)
_MESH = flags.DEFINE_string("mesh", "model=1", "Device mesh: model=4 splits every layer in four.")


def main() -> int:
    values = flags.FLAGS.flag_values_dict()
    asked = Asked(
        checkpoint_dir=Path(_CHECKPOINT_DIR.value),
        model=None if _MODEL.value is None else Path(_MODEL.value),
        mesh=_MESH.value,
        engine=from_flags(EngineConfig, values),
        names=from_flags(ModelNames, values),
    )
    return serve(asked, from_flags(ServerConfig, values))


if __name__ == "__main__":
    define_flags(EngineConfig())
    define_flags(ModelNames())
    define_flags(ServerConfig())
    run(main)
