"""The texts of windows of sound as they grow."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from launch.serving.answers import PLAIN, Piece
from launch.serving.http.context import measured
from launch.serving.http.metrics import Metrics
from launch.serving.http.service import Replies, Service
from launch.serving.speech_requests import language_request, opening_of, text_request
from launch.speech import Listener, Window, WindowText


@dataclass(frozen=True)
class Speech:
    """A model of speech behind the API."""

    name: str
    listener: Listener
    service: Service
    metrics: Metrics


class _UnderWay(NamedTuple):
    """What is asked about a window at the moment."""

    replies: Replies
    held: ExitStack
    is_text: bool  # rather than its language


class SpeechAnswers:
    """See `Growing`. Entering the block asks about as many windows as the batch has places, and the
    others follow; of each the language comes first, if that is to be detected, then the text.
    Leaving the block early cancels what is under way."""

    def __init__(self, speech: Speech, windows: Sequence[Window]) -> None:
        self._speech, self._windows = speech, windows
        self._openings: list[Sequence[int]] = [()] * len(windows)
        self._languages: dict[int, int] = {}  # tokens of those that were detected, by window
        self._next = 0  # the first window that nothing has been asked about
        self._under_way: dict[int, _UnderWay] = {}
        self._on_news: Callable[[], None] = lambda: None

    def __enter__(self) -> "SpeechAnswers":
        """Raises what `Engine.submit` raises."""
        try:
            self._ask_more()
        except Exception:
            self._leave()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._leave()

    @property
    def are_complete(self) -> bool:
        return not self._under_way

    def listen(self, on_news: Callable[[], None]) -> None:
        self._on_news = on_news
        for entry in list(self._under_way.values()):
            entry.replies.listen(on_news)

    def take(self, act: Callable[[int, Piece], None]) -> None:
        for number, entry in list(self._under_way.items()):
            if entry.is_text:
                entry.replies.take(partial(_of_window, act, number))
            else:
                entry.replies.take(partial(self._note_language, number))
            if not entry.replies.are_complete:
                continue
            self._under_way.pop(number).held.close()
            if not entry.is_text:
                self._ask_text(number, self._languages[number])
        self._ask_more()

    def window_text(self, number: int, tokens: Sequence[int]) -> WindowText:
        """What is said in a window whose answer is complete."""
        return self._speech.listener.window_text(self._openings[number], tokens)

    def _note_language(self, number: int, index: int, piece: Piece) -> None:
        self._languages.update((number, token) for token in piece.tokens)

    def _ask_more(self) -> None:
        most = self._speech.service.limits.slots
        while self._next < len(self._windows) and len(self._under_way) < most:
            number, self._next = self._next, self._next + 1
            if None in opening_of(self._speech.listener, self._windows[number]):
                self._ask_language(number)
            else:
                self._ask_text(number)

    def _ask_language(self, number: int) -> None:
        listener, service = self._speech.listener, self._speech.service
        request = language_request(listener, self._windows[number], service.new_id())
        with ExitStack() as stack:
            # A step of detection is no answer of its own: nothing measures it.
            replies = stack.enter_context(Replies(service, [request], PLAIN, [lambda piece: None]))
            self._follow(number, _UnderWay(replies, stack.pop_all(), is_text=False))

    def _ask_text(self, number: int, language: int | None = None) -> None:
        listener, service = self._speech.listener, self._speech.service
        window = self._windows[number]
        request = text_request(listener, window, service.new_id(), language=language)
        self._openings[number] = request.prompt
        with ExitStack() as stack:
            watch = stack.enter_context(measured(self._speech.metrics, [request]))
            replies = stack.enter_context(Replies(service, [request], PLAIN, watch))
            self._follow(number, _UnderWay(replies, stack.pop_all(), is_text=True))

    def _follow(self, number: int, entry: _UnderWay) -> None:
        self._under_way[number] = entry
        entry.replies.listen(self._on_news)

    def _leave(self) -> None:
        for entry in self._under_way.values():
            entry.held.close()
        self._under_way.clear()


def _of_window(act: Callable[[int, Piece], None], number: int, index: int, piece: Piece) -> None:
    """A piece of the only answer about a window."""
    act(number, piece)
