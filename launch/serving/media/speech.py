"""A model of speech behind an engine, from its files on."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

from launch.errors import ModelError
from launch.serving.answering import Answering
from launch.serving.backend import Backend
from launch.serving.config import EngineConfig
from launch.serving.desk import EngineDesk
from launch.serving.encoder_decoder import Sources, limits_of, load_copies, make_runners
from launch.serving.errors import ServingError
from launch.serving.grammar import Grammars
from launch.serving.http.transcriptions import SpeechModel
from launch.serving.model_choice import ModelChoice
from launch.serving.requests import Output, Request
from launch.serving.runner.runner import Runner
from launch.serving.sampling.suppressed import Suppressed
from launch.serving.scheduler.limits import SchedulerLimits
from launch.serving.server import make_engine, others_compiled
from launch.serving.speech_requests import language_request, opening_of, text_request
from launch.speech import Listener, Window, WindowText, open_listener
from models.pretrained import describe


class SpeechLoaded(NamedTuple):
    """A model of speech that is ready to run."""

    listener: Listener
    runners: Sequence[Runner]  # one for each copy of the model
    limits: SchedulerLimits


def load(
    directory: Path, mesh_text: str, config: EngineConfig, dtype: str | None = None
) -> SpeechLoaded:
    """The model of a directory, with what it needs to answer compiled.

    Raises LaunchError or ModelsError for what does not suit.
    """
    if config.max_source_len is not None:
        raise ServingError(
            "--max_source_len: a speech model takes windows of one length; leave it out"
        )
    settings = describe(directory).config
    context = min(config.max_model_len or settings.max_seq_len, settings.max_seq_len)
    listener = open_listener(directory, context, settings.vocab_size)
    model, count = load_copies(directory, mesh_text, config, dtype)
    sources = Sources([settings.num_frames], settings.max_source_len, settings.num_mels)
    limits = limits_of(config, model, sources)
    instructions = listener.instructions
    suppressed = Suppressed(instructions.suppressed, instructions.first_suppressed)
    return SpeechLoaded(listener, make_runners(model, count, limits, config, suppressed), limits)


@contextmanager
def speech_model(choice: ModelChoice) -> Iterator[Backend]:
    """Texts of sound, by an engine."""
    directory, config = choice.model, choice.engine
    if directory is None:
        raise ModelError("a model of speech is served from its directory: give --model")
    loaded = load(directory, choice.mesh, config)
    recipe = SpeechModel(
        name=choice.name,
        files=directory,
        context=loaded.listener.context,
        vocab_size=loaded.listener.vocab_size,
        limits=loaded.limits,
        created=int(time.time()),
    )
    make = partial(make_engine, loaded.runners, loaded.limits, config)
    grammars = Grammars(None, loaded.listener.vocab_size)
    interval = config.delivery_interval
    with (
        others_compiled(loaded.runners, config),
        EngineDesk(make, grammars, delivery_interval=interval) as desk,
    ):
        yield Backend(recipe, desk)


def transcribe(
    loaded: SpeechLoaded, windows: Sequence[Window], max_tokens: int | None = None
) -> Iterator[WindowText]:
    """The transcript of each window, in their order; all are computed at once. Raises ServingError
    if the device fails."""
    listener, news = loaded.listener, SimpleQueue[Sequence[Output]]()
    config = EngineConfig(max_num_waiting=2 * len(windows))
    with make_engine(loaded.runners, loaded.limits, config, news.put) as engine:
        unknown = [n for n, window in enumerate(windows) if None in opening_of(listener, window)]
        asked = [language_request(listener, windows[n], f"language {n}") for n in unknown]
        languages = dict(zip(unknown, _answers(engine, news, asked), strict=True))
        requests = [
            text_request(
                listener,
                window,
                f"text {n}",
                language=languages[n][0] if n in languages else None,
                max_tokens=max_tokens,
            )
            for n, window in enumerate(windows)
        ]
        for request, made in zip(requests, _answers(engine, news, requests), strict=True):
            yield listener.window_text(request.prompt, made)


def _answers(
    engine: Answering, news: "SimpleQueue[Sequence[Output]]", requests: Sequence[Request]
) -> Iterator[list[int]]:
    """The tokens of each answer, as soon as it and those before it are complete."""
    made: dict[str, list[int]] = {request.id: [] for request in requests}
    left = set(made)
    for request in requests:
        engine.submit(request)
    for request in requests:
        while request.id in left:
            for output in news.get():
                if output.finished == "error":
                    raise ServingError(f"the sound could not be transcribed: {output.error}")
                made[output.id].extend(output.tokens)
                if output.finished is not None:
                    left.discard(output.id)
        yield made[request.id]
