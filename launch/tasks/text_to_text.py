"""Text to text: translation, summaries and what else the model's prefixes ask for."""

import sys

import numpy as np

from launch import draws
from launch.errors import DataError
from launch.tasks.task import Request, Task
from launch.tasks.text_reader import open_reader
from models.generate import generate
from models.weights.ending import read_ending


def _run(request: Request) -> None:
    reader = open_reader(request)
    source = np.array(reader.tokenizer.encode(request.input).ids, np.int32)
    if not source.size:
        raise DataError("--input is empty: give at least one character")
    model = reader.model
    tokens = generate(
        model.graph,
        model.parameters,
        np.array([[model.config.start_token]], np.int32),
        inputs={"source": source[None]},
        max_new_tokens=request.max_new_tokens,
        # Relative positions set no limit: as much room as is asked for, and the start token.
        context=1 + request.max_new_tokens,
        sampling=request.sampling,
        ending=read_ending(request.directory, model.fields),
        key=draws.key(request.seed),
    )
    sys.stdout.write(reader.tokenizer.decode(tokens[0].tolist()) + "\n")


TASK = Task(
    "text2text-generation", 'a text with its prefix, such as "translate English to German: …"', _run
)
