"""`/v1/audio/transcriptions` and `/v1/audio/translations`: what is said in a file of sound."""

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from launch.errors import DataError
from launch.serving.errors import RequestError
from launch.serving.http.batch_metrics import BatchMetrics
from launch.serving.http.bodies import Body
from launch.serving.http.computing import Computing
from launch.serving.http.errors import check_model
from launch.serving.http.forms import File, parse_form
from launch.serving.http.link import Link
from launch.serving.http.site import Endpoint, Site, WholeAnswer, model_entry
from launch.sound import read_sound
from launch.speech import Heard, Listener, Manner, Window, open_listener
from models.errors import GenerationError

LARGEST = 25 << 20  # bytes of a body, as OpenAI has it


@dataclass(frozen=True)
class Speech:
    """A model of speech behind the API."""

    name: str
    listener: Listener
    computing: Computing[Window, Heard]
    metrics: BatchMetrics


class Segment(NamedTuple):
    """What is said in one window."""

    number: int
    start: float  # seconds
    end: float  # seconds
    text: str
    tokens: Sequence[int]


class Transcript(NamedTuple):
    """What is said in a file."""

    task: str
    language: str | None
    duration: float  # seconds
    temperature: float
    segments: Sequence[Segment]

    @property
    def text(self) -> str:
        """All of it."""
        return " ".join(segment.text for segment in self.segments if segment.text)


@dataclass(frozen=True)
class Transcription(WholeAnswer):
    """One body, read."""

    speech: Speech
    sound: np.ndarray
    manner: Manner
    format: str

    @classmethod
    def read(cls, speech: Speech, task: str, body: Body) -> "Transcription":
        """Raises RequestError or HTTPError for a body that cannot be answered."""
        check_model(body.text("model", speech.name), speech.name)
        form = body.text("response_format", "json")
        if form not in FORMATS:
            raise body.fail("response_format", " or ".join(FORMATS))
        for unsupported in ("prompt", "stream"):
            if body.values.get(unsupported) not in (None, "", "false"):
                raise RequestError(f"{unsupported} is not supported: leave it out", unsupported)
        temperature = body.number("temperature", 0.0)
        if not 0 <= temperature <= 1:
            raise body.fail("temperature", "a number from 0 to 1")
        known = speech.listener.tasks
        requested = None if task == TRANSCRIBE and task not in known else task
        language = body.text("language", None)
        manner = Manner(language, requested, temperature, body.integer("seed", 0))
        try:
            speech.listener.check(manner)
        except GenerationError as error:
            raise RequestError(str(error), "language") from error
        return cls(speech, _sound(speech, body), manner, form)

    async def whole(self) -> dict[str, Any] | str:
        """The text, in the format that was asked for."""
        listener = self.speech.listener
        windows = [Window(features, self.manner) for features in listener.windows(self.sound)]
        with self.speech.metrics.measured():
            heard = await self.speech.computing.compute(windows)
        settings = listener.settings
        duration = len(self.sound) / settings.sampling_rate
        step = settings.num_samples / settings.sampling_rate
        segments = [
            Segment(
                number,
                number * step,
                min((number + 1) * step, duration),
                listener.text(entry.tokens),
                entry.tokens,
            )
            for number, entry in enumerate(heard)
        ]
        task = self.manner.task or TRANSCRIBE
        return FORMATS[self.format](
            Transcript(task, heard[0].language, duration, self.manner.temperature, segments)
        )


@dataclass(frozen=True)
class SpeechModel:
    """See `Recipe`."""

    name: str
    files: Path
    context: int  # longest text, in tokens
    created: int  # Unix time of the start

    def open(self, link: Link) -> Site:
        """What is shown of a model of speech."""
        listener, metrics = open_listener(self.files, self.context), BatchMetrics(self.name)
        speech = Speech(self.name, listener, Computing(link), metrics)

        def endpoint(task: str) -> Endpoint:
            return Endpoint(partial(Transcription.read, speech, task), parse_form, LARGEST)

        async def load() -> dict[str, Any]:
            return {"facts": "texts of sound", **(await speech.computing.load())._asdict()}

        async def text() -> bytes:
            return metrics.text(await speech.computing.load())

        tasks = {TRANSCRIBE: "/v1/audio/transcriptions"}
        if TRANSLATE in listener.tasks:
            tasks[TRANSLATE] = "/v1/audio/translations"
        return Site(
            name=self.name,
            worker=link,
            endpoints={path: endpoint(task) for task, path in tasks.items()},
            models=lambda: [model_entry(self.name, self.created)],
            metrics=text,
            load=load,
        )


TRANSCRIBE, TRANSLATE = "transcribe", "translate"


def _sound(speech: Speech, body: Body) -> np.ndarray:
    file = body.values.get("file")
    if not isinstance(file, File):
        raise RequestError("file is missing; a file of sound is needed", "file")
    rate = speech.listener.settings.sampling_rate
    try:
        return read_sound(io.BytesIO(file.data), rate, file.name)
    except DataError as error:
        raise RequestError(str(error), "file") from error


def _json(made: Transcript) -> dict[str, Any]:
    usage = {"type": "duration", "seconds": int(np.ceil(made.duration))}
    return {"text": made.text, "usage": usage}


def _verbose(made: Transcript) -> dict[str, Any]:
    return {
        "task": made.task,
        "language": made.language or "",
        "duration": made.duration,
        **_json(made),
        "segments": [
            {
                "id": segment.number,
                "seek": 0,
                "start": segment.start,
                "end": segment.end,
                "text": segment.text,
                "tokens": list(segment.tokens),
                "temperature": made.temperature,
            }
            for segment in made.segments
        ],
    }


def _subtitles(made: Transcript, *, head: str, comma: str, numbered: bool) -> str:
    def time_of(seconds: float) -> str:
        milliseconds = round(seconds * 1000)
        minutes, rest = divmod(milliseconds, 60_000)
        clock = f"{minutes // 60:02}:{minutes % 60:02}:{rest // 1000:02}"
        return f"{clock}{comma}{rest % 1000:03}"

    blocks = [
        (f"{segment.number + 1}\n" if numbered else "")
        + f"{time_of(segment.start)} --> {time_of(segment.end)}\n{segment.text}\n"
        for segment in made.segments
    ]
    return head + "\n".join(blocks)


FORMATS: Mapping[str, Callable[[Transcript], dict[str, Any] | str]] = {
    "json": _json,
    "text": lambda made: made.text + "\n",
    "verbose_json": _verbose,
    "srt": partial(_subtitles, head="", comma=",", numbered=True),
    "vtt": partial(_subtitles, head="WEBVTT\n\n", comma=".", numbered=False),
}
