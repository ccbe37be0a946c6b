"""The texts of windows of sound as they grow."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from launch.serving.answers import Piece
from launch.serving.hearing import opening_of, what_is_said, which_language
from launch.serving.http.context import measured
from launch.serving.http.metrics import Metrics
from launch.serving.http.service import Replies, Service
from launch.speech import Heard, Listener, Window


@dataclass(frozen=True)
class Speech:
    """A model of speech behind the API."""

    name: str
    listener: Listener
    service: Service
    metrics: Metrics


class Hearing:
    """See `Growing`. Entering the block asks for the languages that are to be detected, and for the
    texts once they are known; leaving it early cancels what is under way."""

    def __init__(self, speech: Speech, windows: Sequence[Window]) -> None:
        self._speech, self._windows = speech, windows
        self._openings: list[Sequence[int]] = []
        self._unknown = [
            number
            for number, window in enumerate(windows)
            if None in opening_of(speech.listener, window)
        ]
        self._languages: dict[int, int] = {}  # tokens, by window
        self._held = ExitStack()
        self._on_news: Callable[[], None] = lambda: None
        self._detects = bool(self._unknown)

    def __enter__(self) -> "Hearing":
        """Raises what `Engine.submit` raises."""
        if self._detects:
            self._ask_languages()
        else:
            self._ask_texts()
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()

    @property
    def are_complete(self) -> bool:
        return not self._detects and self._replies.are_complete

    def listen(self, on_news: Callable[[], None]) -> None:
        self._on_news = on_news
        self._replies.listen(on_news)

    def take(self, act: Callable[[int, Piece], None]) -> None:
        if not self._detects:
            self._replies.take(act)
            return
        self._replies.take(self._note)
        if self._replies.are_complete:
            self._detects = False
            self._held.close()
            self._ask_texts()
            self._replies.listen(self._on_news)

    def heard(self, number: int, tokens: Sequence[int]) -> Heard:
        """What is said in a window whose answer is complete."""
        return self._speech.listener.heard(self._openings[number], tokens)

    def _note(self, index: int, piece: Piece) -> None:
        self._languages.update((self._unknown[index], token) for token in piece.tokens)

    def _ask_languages(self) -> None:
        listener, service = self._speech.listener, self._speech.service
        requests = [
            which_language(listener, self._windows[number], service.new_id())
            for number in self._unknown
        ]
        watch = [_nobody] * len(requests)
        self._replies = self._held.enter_context(Replies(service, requests, (), watch))

    def _ask_texts(self) -> None:
        listener, service = self._speech.listener, self._speech.service
        requests = [
            what_is_said(listener, window, service.new_id(), language=self._languages.get(number))
            for number, window in enumerate(self._windows)
        ]
        self._openings = [request.prompt for request in requests]
        watch = self._held.enter_context(measured(self._speech.metrics, requests))
        self._replies = self._held.enter_context(Replies(service, requests, (), watch))


def _nobody(piece: Piece) -> None:
    """Steps of detection are no answers of their own."""
