"""`/v1/audio/transcriptions` and `/v1/audio/translations`: what is said in a file of sound."""

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import orjson

from launch.errors import DataError
from launch.serving.adapters.registry import Registry
from launch.serving.answers import Piece
from launch.serving.errors import RequestError
from launch.serving.http.bodies import Body
from launch.serving.http.errors import check_model
from launch.serving.http.events import EventSource
from launch.serving.http.forms import File, parse_form
from launch.serving.http.generation import load_of, metrics_of
from launch.serving.http.link import Link
from launch.serving.http.metrics import Metrics
from launch.serving.http.service import Service, follow
from launch.serving.http.site import Endpoint, Site, Stream, model_entry
from launch.serving.http.speech_answers import Speech, SpeechAnswers
from launch.serving.scheduler.limits import SchedulerLimits
from launch.sound import read_sound
from launch.speech import Manner, Window, WindowText, open_listener
from launch.text import FileTokenizer
from models.errors import GenerationError

LARGEST = 25 << 20  # bytes of a body, as OpenAI has it
MOST_SAMPLES = 1 << 28  # of a file: silence takes few bytes, but its samples take memory


class Segment(NamedTuple):
    """The text of one window of sound."""

    number: int
    start: float  # seconds
    end: float  # seconds
    text: str
    tokens: Sequence[int]


class Transcript(NamedTuple):
    """The text of a file."""

    task: str
    language: str | None
    duration: float  # seconds
    temperature: float
    segments: Sequence[Segment]

    @property
    def text(self) -> str:
        """The whole text of the transcript."""
        return " ".join(segment.text for segment in self.segments if segment.text)


@dataclass(frozen=True)
class Transcription:
    """The parsed body of a request for a transcription."""

    speech: Speech
    windows: Sequence[Window]
    duration: float  # seconds
    manner: Manner
    format: str
    streams: bool

    @classmethod
    def read(cls, speech: Speech, task: str, body: Body) -> "Transcription":
        """Raises RequestError or HTTPError for a body that cannot be answered."""
        check_model(body.text("model", speech.name), speech.name)
        form = body.text("response_format", "json")
        if form not in FORMATS:
            raise body.fail("response_format", " or ".join(FORMATS))
        streams = body.flag("stream")
        if streams and form not in STREAMED:
            raise body.fail("response_format", f"{' or '.join(STREAMED)} in a stream")
        _check_supported(body)
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
        sound = _read_sound(speech, body)
        windows = [Window(features, manner) for features in speech.listener.windows(sound)]
        duration = len(sound) / speech.listener.settings.sampling_rate
        return cls(speech, windows, duration, manner, form, streams)

    async def whole(self) -> dict[str, Any] | str:
        """The text, in the format that was asked for."""
        tokens: list[list[int]] = [[] for _ in self.windows]
        with SpeechAnswers(self.speech, self.windows) as answers:
            await follow(answers, lambda index, piece: tokens[index].extend(piece.tokens))
            texts = [answers.window_text(*entry) for entry in enumerate(tokens)]
        return FORMATS[self.format](self.transcript(texts))

    def stream(self) -> Stream | None:
        """The text piece by piece, if that was asked for."""
        if not self.streams:
            return None
        answers = SpeechAnswers(self.speech, self.windows)
        return EventSource(answers, _Events(self, answers))

    def transcript(self, texts: Sequence[WindowText]) -> Transcript:
        """The whole transcript, of the texts of its windows."""
        listener, duration = self.speech.listener, self.duration
        step = listener.settings.seconds
        segments = [
            Segment(
                number,
                number * step,
                min((number + 1) * step, duration),
                listener.text(entry.tokens),
                entry.tokens,
            )
            for number, entry in enumerate(texts)
        ]
        task, language = self.manner.task or TRANSCRIBE, texts[0].language
        return Transcript(task, language, duration, self.manner.temperature, segments)


class _Events:
    """Tells of a text while it grows, in the order of the windows, whichever is transcribed
    first."""

    def __init__(self, transcription: Transcription, answers: SpeechAnswers) -> None:
        self._transcription, self._answers = transcription, answers
        count = len(transcription.windows)
        self._tokens: list[list[int]] = [[] for _ in range(count)]
        self._texts, self._ended = [""] * count, [False] * count
        self._current = 0  # the window whose text is told
        self._has_begun = self._told_any = False  # it, or any window
        self._blank = ""  # after what was told; it counts if more of the window comes

    def opening(self) -> list[bytes]:
        return []

    def piece(self, index: int, piece: Piece) -> Sequence[bytes]:
        self._tokens[index].extend(piece.tokens)
        self._texts[index] += piece.text
        self._ended[index] = piece.finished is not None
        return [_event("delta", delta=text) for text in self._news() if text]

    def closing(self) -> Sequence[bytes]:
        texts = [self._answers.window_text(*entry) for entry in enumerate(self._tokens)]
        return (_event("done", **_json(self._transcription.transcript(texts))),)

    def _news(self) -> Iterator[str]:
        """Returns the text that can be told now. Blanks at the ends of a window do not belong to
        it."""
        while True:
            text, self._texts[self._current] = self._texts[self._current], ""
            text = self._blank + text if self._has_begun else text.lstrip()
            shown = text.rstrip()
            self._blank = text[len(shown) :]
            if shown:
                yield shown if self._has_begun or not self._told_any else " " + shown
                self._has_begun = self._told_any = True
            if not self._ended[self._current] or self._current + 1 == len(self._texts):
                return
            self._current += 1
            self._has_begun = False


@dataclass(frozen=True)
class SpeechModel:
    """The recipe of a model of speech."""

    name: str
    files: Path
    context: int  # longest text, in tokens
    vocab_size: int
    limits: SchedulerLimits
    created: int  # Unix time of the start

    def open(self, link: Link) -> Site:
        """Makes the site of a model of speech."""
        listener = open_listener(self.files, self.context, self.vocab_size)
        metrics, adapters = Metrics(self.limits, self.name), Registry(self.name)
        service = Service(link, self.limits, FileTokenizer(listener.tokenizer), adapters)
        speech = Speech(self.name, listener, service, metrics)

        def endpoint(task: str) -> Endpoint:
            return Endpoint(partial(Transcription.read, speech, task), parse_form, LARGEST)

        tasks = {TRANSCRIBE: "/v1/audio/transcriptions"}
        if TRANSLATE in listener.tasks:
            tasks[TRANSLATE] = "/v1/audio/translations"
        return Site(
            name=self.name,
            worker=link,
            endpoints={path: endpoint(task) for task, path in tasks.items()},
            models=lambda: [model_entry(self.name, self.created)],
            metrics=partial(metrics_of, service, metrics),
            load=partial(load_of, service),
        )


TRANSCRIBE, TRANSLATE = "transcribe", "translate"
STREAMED = ("json", "text")  # formats that do not need the whole text


def _check_supported(body: Body) -> None:
    if body.value("prompt") not in (None, ""):
        raise RequestError("prompt is not supported: leave it out", "prompt")
    if "word" in body.list("timestamp_granularities[]"):
        raise RequestError(
            "timestamps of words are not supported: segments are the windows that are transcribed",
            "timestamp_granularities[]",
        )
    if body.list("include[]"):
        raise RequestError("logprobs are not supported: leave include out", "include[]")


def _read_sound(speech: Speech, body: Body) -> np.ndarray:
    file = body.value("file")
    if not isinstance(file, File):
        raise RequestError("file is missing; a file of sound is needed", "file")
    rate = speech.listener.settings.sampling_rate
    try:
        return read_sound(io.BytesIO(file.data), rate, file.name, MOST_SAMPLES)
    except DataError as error:
        raise RequestError(str(error), "file") from error


def _event(kind: str, **facts: Any) -> bytes:
    return orjson.dumps({"type": f"transcript.text.{kind}", **facts})


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
