"""Stop strings, which end the generated text."""

from collections.abc import Sequence


class StopFinder:
    """Text up to the first stop string; holds back what may be the beginning of one."""

    def __init__(self, stops: Sequence[str], *, include: bool = False) -> None:
        """With `include`, the stop string that is found belongs to the text."""
        self._stops, self._include = stops, include
        self._held = ""
        #: The stop string that has ended the text.
        self.stop: str | None = None

    def feed(self, text: str) -> str:
        """The text that is certain not to belong to a stop string."""
        if not self._stops:
            return text
        text = self._held + text
        places = [(place, stop) for stop in self._stops if (place := text.find(stop)) >= 0]
        if places:
            place, stop = min(places)
            self.stop, self._held = stop, ""
            return text[: place + len(stop)] if self._include else text[:place]
        keep = max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def finish(self) -> str:
        """The text that was held back, when no more text comes."""
        text, self._held = self._held, ""
        return text


def _overlap(text: str, stop: str) -> int:
    """Counts the characters at the end of the text that begin the stop string."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)
