"""Sentence embeddings by a sentence-transformers directory, and their similarities."""

import json
import sys
from dataclasses import dataclass

from launch.pooling.encoder import SentenceEncoder
from launch.program import say
from launch.tasks.media_reader import mesh_of
from launch.tasks.task import Request, Task
from launch.tasks.text_reader import parts_of
from launch.tasks.text_understanding import write_rows

NAME = "sentence-similarity"


@dataclass(frozen=True)
class SentenceDirectory:
    """A sentence-transformers directory and the task it is made for."""

    name: str = "SentenceTransformer"
    task: str = NAME


def _run(request: Request) -> None:
    text, *others = parts_of(request, "a text, or several", count=1)
    mesh = mesh_of(request)
    say(f"{request.directory} on mesh {dict(mesh.shape)}")
    encoder = SentenceEncoder.open(request.directory, mesh, request.dtype)
    vectors = encoder.encode([text, *others])
    if not others:
        sys.stdout.write(json.dumps(vectors[0].tolist()) + "\n")
        return
    write_rows(zip(others, encoder.similarity(vectors[:1], vectors[1:])[0], strict=True))


TASK = Task(NAME, "a text to embed, or a text | another | … to compare it with", _run)
