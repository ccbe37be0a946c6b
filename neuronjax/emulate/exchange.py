"""An instruction's part in an exchange between ranks, or between the cores of a split: send,
combine what was sent, receive."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from neuronjax.emulate.frame import Values

Array = np.ndarray
Sent = Mapping[int, list[Array]]
"""Rank or core -> the tensors it sends."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """The side of one member of an exchange.

    `stream` is its queue, whose exchanges take place in order; `members` are the ranks or cores
    that take part; `description` must be the same on all of them.
    """

    stream: str
    members: tuple[int, ...]
    description: str
    send: Callable[[Values], list[Array]]
    #: What a member gets of what all of them sent.
    combine: Callable[[Sent, int], list[Array]]
    receive: Callable[[Values, list[Array]], None]
    #: Whether the members are cores of a split, not ranks.
    is_between_cores: bool = False
