"""Limits of the tokens that a client may have read and written within a minute."""

import time
from collections.abc import Callable

from launch.serving.errors import CrowdedError

MINUTE = 60.0  # seconds
_MOST_CLIENTS = 10_000  # that are remembered; those that have spent nothing lately go


class Budgets:
    """Every client has a budget that fills up within a minute. A request may begin as long as there
    is anything left: how long its answer will be, nobody knows before."""

    def __init__(self, per_minute: int | None, clock: Callable[[], float] = time.monotonic) -> None:
        """`per_minute`: tokens; None: as many as a client likes."""
        self._per_minute, self._clock = per_minute, clock
        self._spent: dict[str, tuple[float, float]] = {}  # tokens, and when that was so

    def check(self, client: str) -> None:
        """Raises CrowdedError if the client has spent its budget."""
        if self._per_minute is None:
            return
        over = self._now_spent(client) - self._per_minute
        if over >= 0:
            seconds = 1 + int(over * MINUTE / self._per_minute)
            raise CrowdedError(
                f"this client has had its {self._per_minute} tokens of this minute. Try again in "
                f"{seconds} s.",
                seconds,
            )

    def spend(self, client: str, tokens: int) -> None:
        """Tokens of the client were read or written."""
        if self._per_minute is None or not tokens:
            return
        self._spent[client] = self._now_spent(client) + tokens, self._clock()
        if len(self._spent) > _MOST_CLIENTS:
            self._spent = {
                own: entry for own, entry in self._spent.items() if self._now_spent(own) > 0
            }

    def _now_spent(self, client: str) -> float:
        tokens, when = self._spent.get(client, (0.0, 0.0))
        returned = (self._clock() - when) * (self._per_minute or 0) / MINUTE
        return max(tokens - returned, 0.0)
