"""What clients may come back for, in the memory of the process with the clients."""

from collections import OrderedDict
from collections.abc import Iterator
from typing import Generic, NamedTuple, TypeVar

from launch.serving.http.errors import NO_SUCH_OBJECT, HTTPError

Kept = TypeVar("Kept")


class _Entry(NamedTuple, Generic[Kept]):
    client: str
    size: int  # bytes
    value: Kept


class Store(Generic[Kept]):
    """The newest of a kind, as many as fit into so many bytes. For a client there are only its
    own."""

    def __init__(self, kind: str, most_bytes: int) -> None:
        self._kind, self._left = kind, most_bytes
        self._entries: OrderedDict[str, _Entry[Kept]] = OrderedDict()

    def put(self, client: str, identifier: str, value: Kept, size: int) -> None:
        """Keeps something, for which the oldest have to go if there is no room."""
        self._entries[identifier] = _Entry(client, size, value)
        self._left -= size
        while self._left < 0:
            self._left += self._entries.popitem(last=False)[1].size

    def get(self, client: str, identifier: str) -> Kept:
        """Raises HTTPError if the client has nothing of this name, or has it no more."""
        entry = self._entries.get(identifier)
        if entry is None or entry.client != client:
            raise HTTPError(
                NO_SUCH_OBJECT,
                f"there is no {self._kind} {identifier!r} of yours; the oldest go when memory is "
                "short, and all when the server ends",
            )
        return entry.value

    def remove(self, client: str, identifier: str) -> dict[str, object]:
        """Forgets something, as OpenAI's API tells it; raises as `get`."""
        self.get(client, identifier)
        self._left += self._entries.pop(identifier).size
        return {"id": identifier, "object": self._kind, "deleted": True}

    def of(self, client: str) -> Iterator[Kept]:
        """What a client has, the newest first."""
        own = (entry for entry in self._entries.values() if entry.client == client)
        return (entry.value for entry in reversed(list(own)))
