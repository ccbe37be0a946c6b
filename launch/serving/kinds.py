"""The ways to serve a model, by the task that it is made for."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path

import jax

from launch.errors import ModelError
from launch.program import say
from launch.serving.backend import Backend
from launch.serving.batch import answered, read_lines
from launch.serving.config import ServerConfig
from launch.serving.errors import ServingError
from launch.serving.front import Front
from launch.serving.http.tasks import AnswerFile, Serve
from launch.serving.listener import bind
from launch.serving.media.images import image_model
from launch.serving.media.speech import speech_model
from launch.serving.model_choice import ModelChoice
from launch.serving.pooling.site import pooled_model
from launch.serving.server import language_model
from launch.serving.text_to_text import text_to_text_model
from launch.serving.vision_language import vision_language_model
from launch.tasks.table import made_for
from models.diffusion.kinds import TEXT_TO_IMAGE
from models.sentences.config import is_sentence_directory

Open = Callable[[ModelChoice], AbstractContextManager[Backend]]

RUNNERS: Mapping[str, Open] = {
    "generate": language_model,
    "text2text": text_to_text_model,
    "pooling": pooled_model,
    "transcription": speech_model,
    "vision_language": vision_language_model,
    "images": image_model,
}

LOOPING = ("generate", "pooling")
"""The kinds whose models can have their layers in one loop."""

# By the task of the model's architecture.
KINDS: Mapping[str, str] = {
    "text-generation": "generate",
    "text2text-generation": "text2text",
    "feature-extraction": "pooling",
    "text-classification": "pooling",
    "automatic-speech-recognition": "transcription",
    "image-text-to-text": "vision_language",
    TEXT_TO_IMAGE: "images",
}


def open_model(choice: ModelChoice) -> AbstractContextManager[Backend]:
    """The model, ready to answer until the end of the block.

    Raises LaunchError or ModelsError, on entering too, for what cannot be served.
    """
    runner = _runner(choice)
    if choice.engine.scan_layers and runner not in LOOPING:
        raise ServingError(
            f"--scan_layers is for models of text alone ({', '.join(LOOPING)}), but {choice.files} "
            f"is served as {runner}. Leave it out."
        )
    return RUNNERS[runner](choice)


def serve(choice: ModelChoice, config: ServerConfig) -> int:
    """Serves until a signal ends it; the exit code. Raises ServingError for a key or a certificate
    that cannot be used."""
    config.key()
    config.check_certificate()
    with (
        bind(config) as listener,
        Front([listener]) as front,
        open_model(choice) as backend,
        front.told_of_signals(),
    ):
        front.start(backend, Serve(listener.fileno(), config, jax.default_backend()))
        return front.wait()


def answer_file(choice: ModelChoice, requests: Path, output: Path, concurrency: int) -> int:
    """Answers the requests of a file that have no answer yet; the exit code."""
    lines = read_lines(requests)
    done = answered(output)
    left = [line for line in lines if line.custom_id not in done]
    if not left:
        say(f"{output} has an answer to each of the {len(lines)} requests: nothing is left to do")
        return 0
    say(f"{len(left)} of {len(lines)} requests have no answer in {output} yet")
    output.parent.mkdir(parents=True, exist_ok=True)
    with Front() as front, open_model(choice) as backend:
        front.start(backend, AnswerFile(left, output, concurrency))
        return front.wait()


def _runner(choice: ModelChoice) -> str:
    if choice.names.runner != "auto":
        return choice.names.runner
    if choice.model is None:
        return "generate"
    if is_sentence_directory(choice.model):
        return "pooling"
    made = made_for(choice.model)
    if made.task not in KINDS:
        raise ModelError(
            f"--model={choice.model} is {made.name}, made for {made.task}, which is not served. "
            f"There are {', '.join(KINDS)}; python -m launch.run does the others."
        )
    return KINDS[made.task]
