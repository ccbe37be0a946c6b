"""Answers a file of requests: `python -m launch.batch --requests=IN.jsonl --output=OUT.jsonl`.

The lines have the format of OpenAI's batch API (`launch/serving/batch.py`). Run again, it continues
with the requests that have no answer yet.
"""

from pathlib import Path

from absl import flags

from launch.program import run
from launch.program_cache import keep_programs
from launch.serving.kinds import answer_file
from launch.serving.model_choice import define_model_flags, model_choice_of_flags

_REQUESTS = flags.DEFINE_string("requests", None, "File of requests.", required=True)
_OUTPUT = flags.DEFINE_string("output", None, "File of answers.", required=True)
_CONCURRENCY = flags.DEFINE_integer("concurrency", 64, "Requests in flight.", lower_bound=1)


def main() -> int:
    files, choice = (Path(_REQUESTS.value), Path(_OUTPUT.value)), model_choice_of_flags()
    keep_programs(choice.engine.compilation_cache_dir)
    return answer_file(choice, *files, _CONCURRENCY.value)


if __name__ == "__main__":
    define_model_flags()
    run(main)
