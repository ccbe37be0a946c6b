"""What an instruction does together with other ranks: it sends, everybody combines, it receives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from neuronjax.emulate.frame import Values

Array = np.ndarray
Sent = Mapping[int, list[Array]]
"""Rank -> the tensors it sends."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """One side of an exchange.

    `stream` is the queue it is in, in which exchanges meet in order; `members` are the ranks that
    take part; `description` is what all of them must say.
    """

    stream: str
    members: tuple[int, ...]
    description: str
    send: Callable[[Values], list[Array]]
    #: What a rank gets of what all members sent.
    combine: Callable[[Sent, int], list[Array]]
    receive: Callable[[Values, list[Array]], None]
