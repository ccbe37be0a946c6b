"""Serves a model by OpenAI's API: `python -m launch.serve --checkpoint_dir=DIR`, or `--model=DIR`.

The weights of a run or of a Hugging Face directory are read straight into the shardings of this
program's mesh. The buckets that answers need are compiled before the first request is accepted, the
others while the first answers are made (see --warm_up). The model determines what is served: text,
embeddings or classes.
"""

from absl import flags

from launch.program import run
from launch.program_cache import keep_programs
from launch.serving.config import ServerConfig
from launch.serving.kinds import serve
from launch.serving.model_choice import define_model_flags, model_choice_of_flags
from launch.serving.router.serve import serve_replicas
from launch.settings import define_flags, from_flags


def main() -> int:
    choice = model_choice_of_flags()
    config = from_flags(ServerConfig, flags.FLAGS.flag_values_dict())
    if config.replicas > 1:
        return serve_replicas(choice, config)
    keep_programs(choice.engine.compilation_cache_dir)
    return serve(choice, config)


if __name__ == "__main__":
    define_model_flags()
    define_flags(ServerConfig())
    run(main)
