"""Answers a file of requests: `python -m launch.batch --requests=IN.jsonl --output=OUT.jsonl`.

The lines are those of OpenAI's batch API (`launch/serving/batch.py`). Started again, it goes on
with the requests that have no answer yet.
"""

from pathlib import Path

from absl import flags

from launch.program import run
from launch.serving.asked import Asked
from launch.serving.config import EngineConfig, ModelNames
from launch.serving.kinds import answer_file
from launch.settings import define_flags, from_flags

_CHECKPOINT_DIR = flags.DEFINE_string("checkpoint_dir", "runs/main", "Directory of the run.")
_MODEL = flags.DEFINE_string(
    "model", None, "Hugging Face directory, instead of the checkpoint of a run."
)
_MESH = flags.DEFINE_string("mesh", "model=1", "Device mesh: model=4 splits every layer in four.")
_REQUESTS = flags.DEFINE_string("requests", None, "File of requests.", required=True)
_OUTPUT = flags.DEFINE_string("output", None, "File of answers.", required=True)
_CONCURRENCY = flags.DEFINE_integer("concurrency", 64, "Requests under way.", lower_bound=1)


def main() -> int:
    values = flags.FLAGS.flag_values_dict()
    asked = Asked(
        checkpoint_dir=Path(_CHECKPOINT_DIR.value),
        model=None if _MODEL.value is None else Path(_MODEL.value),
        mesh=_MESH.value,
        engine=from_flags(EngineConfig, values),
        names=from_flags(ModelNames, values),
    )
    return answer_file(asked, Path(_REQUESTS.value), Path(_OUTPUT.value), _CONCURRENCY.value)


if __name__ == "__main__":
    define_flags(EngineConfig())
    define_flags(ModelNames())
    run(main)
