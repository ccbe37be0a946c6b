"""What is served of a model, by the task that it is made for."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path

import jax

from launch.errors import ModelError
from launch.loading import progress
from launch.program import say
from launch.serving.batch import answer_all, answered, read_lines
from launch.serving.config import ServerConfig
from launch.serving.http.app import make_app
from launch.serving.http.server import Server, bind, run
from launch.serving.http.site import Site
from launch.serving.media.images import image_model
from launch.serving.media.speech import speech_model
from launch.serving.model_choice import ModelChoice
from launch.serving.pooling.settings import MODULES_FILE
from launch.serving.pooling.site import pooled_model
from launch.serving.server import language_model
from launch.tasks.table import made_for
from models.diffusion import pipeline as diffusion

Open = Callable[[ModelChoice], AbstractContextManager[Site]]

RUNNERS: Mapping[str, Open] = {
    "generate": language_model,
    "pooling": pooled_model,
    "transcription": speech_model,
    "images": image_model,
}

# By the task of the model's architecture.
KINDS: Mapping[str, str] = {
    "text-generation": "generate",
    "feature-extraction": "pooling",
    "text-classification": "pooling",
    "automatic-speech-recognition": "transcription",
    diffusion.TASK: "images",
}


def open_site(choice: ModelChoice) -> AbstractContextManager[Site]:
    """The model, ready to answer until the end of the block.

    Raises LaunchError or ModelsError, on entering too, for what cannot be served.
    """
    return RUNNERS[_runner(choice)](choice)


def serve(choice: ModelChoice, config: ServerConfig) -> int:
    """Serves until a signal ends it; the exit code."""
    listener = bind(config.host, config.port)
    with listener, open_site(choice) as site:
        server = Server(make_app(site, config), site.worker, grace=config.grace_period)
        host, port = listener.getsockname()[:2]
        say(f"{site.name} at http://{host}:{port}/v1 on {jax.default_backend()}; Ctrl-C ends it")
        run(server, listener)
    return 0


def answer_file(choice: ModelChoice, requests: Path, output: Path, concurrency: int) -> int:
    """Answers the requests of a file that have no answer yet; the exit code."""
    lines = read_lines(requests)
    done = answered(output)
    left = [line for line in lines if line.custom_id not in done]
    say(f"{len(left)} of {len(lines)} requests have no answer in {output} yet")
    output.parent.mkdir(parents=True, exist_ok=True)
    with open_site(choice) as site, progress("answers", total=len(left)) as bar:

        async def answer() -> None:
            site.worker.attach(asyncio.get_running_loop())
            await answer_all(
                site, left, output, concurrency=concurrency, on_answer=lambda: bar.update()
            )

        asyncio.run(answer())
    return 0


def _runner(choice: ModelChoice) -> str:
    if choice.names.runner != "auto":
        return choice.names.runner
    if choice.model is None:
        return "generate"
    if (choice.model / MODULES_FILE).is_file():  # of sentence-transformers
        return "pooling"
    made = made_for(choice.model)
    if made.task not in KINDS:
        raise ModelError(
            f"--model={choice.model} is {made.name}, made for {made.task}, which is not served. "
            f"There are {', '.join(KINDS)}; python -m launch.run does the others."
        )
    return KINDS[made.task]
