"""What the scheduler hands to the device, and what it learns from it."""

from collections.abc import Mapping
from collections.abc import Sequence as Items
from dataclasses import dataclass, fields
from itertools import zip_longest
from typing import NamedTuple

import numpy as np

from launch.serving.requests import FinishReason
from launch.serving.scheduler.buckets import Bucket
from launch.serving.scheduler.sequences import Sequence


class Step(NamedTuple):
    """One run of one compiled program. All arrays have an entry per row, padding excluded."""

    bucket: Bucket
    rows: np.ndarray  # int64 [n]: of the bucket; the others are padding
    sequences: Items[Sequence]
    slots: np.ndarray  # int64 [n]
    serials: np.ndarray  # int64 [n]: whom the slots belonged to
    numbers: np.ndarray  # int64 [n]: of the sequences, in order of arrival
    starts: np.ndarray  # int32 [n]: position of the first new token
    counts: np.ndarray  # int32 [n]: new tokens
    on_device: np.ndarray  # bool [n]: the new token is the last one that the device drew
    samples: np.ndarray  # bool [n]: the row's text is complete: a token is drawn
    speculative: bool = False  # all new tokens but the first of each row are guesses
    again: bool = False  # the rows of the step planned before, each with its next token

    @property
    def is_decode(self) -> bool:
        """Whether every row has one new token, or guesses after one."""
        return self.bucket.tokens == 1 or self.speculative

    @property
    def tokens(self) -> int:
        """New tokens of all rows."""
        return int(self.counts.sum())


class Progress(NamedTuple):
    """The sequences that got tokens from a step, and those of them that ended with it."""

    rows: np.ndarray  # int64 [m]: of the step
    sequences: Items[Sequence]  # m
    tokens: Items[Items[int]]  # of each
    finished: Mapping[int, FinishReason]  # by index in these


@dataclass(slots=True)
class Counters:
    """What happened since the start."""

    preemptions: int = 0
    prefix_queries: int = 0  # tokens of texts that were looked up
    prefix_hits: int = 0  # of them: found
    prompt_tokens: int = 0
    generation_tokens: int = 0
    prefill_steps: int = 0
    decode_steps: int = 0
    drafts: int = 0  # rows with guesses
    draft_tokens: int = 0  # guesses
    accepted_tokens: int = 0  # of them: right
    accepted_by_position: tuple[int, ...] = ()  # of them: the first, second, … guess of a row

    @classmethod
    def total(cls, parts: Items["Counters"]) -> "Counters":
        """The sum of the counters of several engines."""
        values = {
            field.name: [getattr(part, field.name) for part in parts] for field in fields(cls)
        }
        positions = values.pop("accepted_by_position")
        return cls(
            **{name: sum(counts) for name, counts in values.items()},
            accepted_by_position=tuple(map(sum, zip_longest(*positions, fillvalue=0))),
        )
