"""Text to text: translation, summarisation and other tasks that the model's prefixes select."""

import sys

import numpy as np

from launch import draws
from launch.errors import DataError
from launch.stops import StopFinder
from launch.tasks.task import Request, Task
from launch.tasks.text_reader import open_reader
from models.generate import generate
from models.weights.generation import read_generation


def _run(request: Request) -> None:
    reader = open_reader(request)
    has_limit = (
        reader.model.config.cache_shape.longest is not None
    )  # as relative positions have not
    encode = reader.encode if has_limit else reader.tokenizer.encode
    source = np.array(encode(request.input).ids, np.int32)
    if not source.size:
        raise DataError("--input is empty: give at least one character")
    model = reader.model
    generation = read_generation(request.directory, model.fields)
    wanted = generation.resolve(request.given, request.generation, start=1)
    stops = generation.stop_strings(request.given)
    tokens = generate(
        model.graph,
        model.parameters,
        np.array([[model.config.start_token]], np.int32),
        inputs={"source": source[None]},
        # Relative positions set no limit: as much room as is asked for, and the start token.
        context=1 + wanted.max_new_tokens,
        key=draws.key(request.seed),
        **wanted._asdict(),
    )
    for text in tokens:
        finder = StopFinder(stops)
        decoded = finder.feed(reader.tokenizer.decode(text.tolist()))
        sys.stdout.write(decoded + finder.finish() + "\n")


TASK = Task(
    "text2text-generation", 'a text with its prefix, such as "translate English to German: …"', _run
)
