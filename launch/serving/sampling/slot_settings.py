"""The host's side: settings of the requests in the slots, as arrays to take rows of."""

from typing import Any

import numpy as np

from launch.serving.requests import MOST_BIASES, Request
from launch.serving.sampling.draw import FLOATS, Settings
from launch.serving.sampling.variants import VARIANTS, variant_of

_NOBODY = np.int64(-1)


class SlotSettings:
    """The settings of requests: an entry per slot, and one more for rows of padding."""

    def __init__(self, slots: int) -> None:
        self.padding = slots
        self.serial = np.full(slots + 1, _NOBODY)  # of the sequence whose settings these are
        self.variant = np.zeros(slots + 1, np.int8)
        self.adapter = np.zeros(slots + 1, np.int32)  # its place in the stacks
        self.prompt_length = np.zeros(slots + 1, np.int32)
        self._uses_state = np.zeros(slots + 1, bool)
        self._seeds = np.zeros((slots + 1, 2), np.uint32)
        self._top_k = np.zeros(slots + 1, np.int32)
        self._floats = np.zeros((slots + 1, len(FLOATS)), np.float32)
        self._floats[:, FLOATS.index("repetition_penalty")] = 1

    def reset(self) -> None:
        """Takes every slot as one that nobody has."""
        self.serial[:] = _NOBODY

    def enter(self, slot: int, serial: int, request: Request) -> bool:
        """Notes the settings of the request that has got a slot. True: what the device remembers of
        the slot must be set, because this request uses it, or because one before it did."""
        sampling = request.sampling
        seed = sampling.seed % (1 << 64)
        self.serial[slot] = serial
        self.variant[slot] = variant_of(request)
        self.prompt_length[slot] = len(request.prompt) - request.answered
        self.adapter[slot] = 0 if request.adapter is None else request.adapter.place
        self._seeds[slot] = seed >> 32, seed & 0xFFFFFFFF
        self._top_k[slot] = sampling.top_k
        self._floats[slot] = [getattr(sampling, name) for name in FLOATS]
        before, self._uses_state[slot] = self._uses_state[slot], VARIANTS[self.variant[slot]].full
        return bool(before or self._uses_state[slot])

    def rows(self, slots: np.ndarray, numbers: np.ndarray) -> Settings:
        """NumPy arrays of the settings of these slots [R], whose answers have `numbers` [R]
        tokens."""
        own: Any = slots.astype(np.int32)
        counted: Any = numbers.astype(np.int32)
        arrays: tuple[Any, ...] = (self._seeds[slots], self._top_k[slots], self._floats[slots])
        return Settings(own, counted, *arrays)


def biases(request: Request) -> tuple[np.ndarray, np.ndarray]:
    """The request's biases, padded: tokens int32 and values FP32 [K]."""
    tokens = np.zeros(MOST_BIASES, np.int32)
    values = np.zeros(MOST_BIASES, np.float32)
    for index, (token, value) in enumerate(request.sampling.logit_bias.items()):
        tokens[index], values[index] = token, value
    return tokens, values
