"""The examples of docs/serving.md for curl, and the servers that they are for."""

import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.conftest import PROJECT
from tests.serving.http_server import Listening

PAGE = PROJECT / "docs" / "serving.md"
LINES = [
    line
    for block in re.findall(r"```bash\n(.*?)```", PAGE.read_text(), re.DOTALL)
    for line in block.splitlines()
    if line.startswith("curl localhost:8000/")
]

# By the kind of the server.
PATHS: Mapping[str, Sequence[str]] = {
    "text": ("/v1/completions", "/v1/chat/completions"),
    "responses": ("/v1/responses",),
    "messages": ("/v1/messages",),
    "tokens": ("/tokenize", "/detokenize"),
    "vectors": ("/v1/embeddings", "/pooling", "/v1/rerank", "/v1/score"),
    "classes": ("/classify",),
    "speech": ("/v1/audio/transcriptions",),
    "images": ("/v1/images/generations",),
    "pictures": ("/v1/chat/completions",),
    "adapters": ("/v1/load_lora_adapter", "/v1/completions", "/v1/unload_lora_adapter"),
}


MARKS: Mapping[str, str] = {"adapters": '"tuned"', "pictures": '"image_url"'}
"""By the kind of the server, what only commands for it have."""


def examples(kind: str) -> list[str]:
    """The commands for a server, in their order."""
    return [
        line
        for line in LINES
        if path_of(line) in PATHS[kind]
        and all((mark in line) == (kind == of) for of, mark in MARKS.items())
    ]


def path_of(line: str) -> str:
    """The path that a command asks for."""
    return line.split()[1].removeprefix("localhost:8000")


def run_example(line: str, server: Listening, folder: Path, key: str = "") -> str:
    """What a command prints, in a folder with its files. Fails if the server refuses."""
    line = line.replace("$KEY", key)
    command = line.replace("curl localhost:8000", f"curl -sS --fail-with-body {server.url}")
    done = subprocess.run(
        ["bash", "-c", command], cwd=folder, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
    return done.stdout
