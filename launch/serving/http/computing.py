"""What the process with the device computes in groups, for asynchronous callers."""

from collections.abc import Sequence
from typing import Generic, TypeVar

from launch.serving.batcher import Load
from launch.serving.http.link import Link
from launch.serving.messages import AskLoad, Compute

Item = TypeVar("Item")
Made = TypeVar("Made")


class Computing(Generic[Item, Made]):
    """A Batcher in another process."""

    def __init__(self, link: Link) -> None:
        self.link = link

    async def compute(self, items: Sequence[Item]) -> list[Made]:
        """The results of the items of a body. Whoever is cancelled takes back what has not begun.

        Raises OverloadedError if the queue is full, ServingError if the process has gone,
        ComputingError if the items cannot be computed.
        """
        made: list[Made] = await self.link.call(Compute(items))
        return made

    async def load(self) -> Load:
        """How busy it is. Raises ServingError if the process has gone."""
        load: Load = await self.link.call(AskLoad())
        return load
