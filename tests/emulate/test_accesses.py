"""Accesses of one storage meet exactly if they have a byte in common."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import numpy as np
from hypothesis import given, settings

from neuronjax.emulate.accesses import Log, Touch
from neuronjax.emulate.frame import Frame
from neuronjax.emulate.memory import Location, Storage
from neuronjax.emulate.window import Form, Window
from neuronjax.formats import FORMATS
from neuronjax.program.affine import affine
from neuronjax.program.element_types import INTEGERS
from neuronjax.program.operand import Access, Buffer, Dim, Memory

ROWS, WIDTH = 4, 64
TYPES = [FORMATS["float32"], FORMATS["bfloat16"], INTEGERS["uint8"]]
STORAGE = Storage("sbuf", ROWS, WIDTH)


@st.composite
def touches(draw: st.DrawFn, masked: bool = False) -> Touch:
    """Up to two free dimensions within one storage, backwards, too; some with a mask."""
    dtype = draw(st.sampled_from(TYPES))
    elements = WIDTH // (dtype.storage_bits // 8)
    dims, low, high = [], 0, 0
    for _ in range(draw(st.integers(1, 2))):
        size = draw(st.integers(1, 4))
        stride = draw(st.integers(-5, 5).filter(bool))
        end = stride * (size - 1)
        if high - low + abs(end) < elements:
            low, high = low + min(0, end), high + max(0, end)
            dims.append(Dim(stride, size))
    dims = dims or [Dim(1, 1)]
    partition = draw(st.integers(0, ROWS - 1))
    partitions = draw(st.integers(1, ROWS - partition))
    access = Access(
        buffer=Buffer(name="b", memory=Memory.SBUF, dtype=dtype, shape=(ROWS, elements)),
        partition=affine(partition),
        partitions=partitions,
        offset=affine(draw(st.integers(-low, elements - 1 - high))),
        dims=tuple(dims),
    )
    unknown: Any = None  # the instruction, of which only messages speak
    frame = Frame({}, {}, {}, {})
    window = Window(unknown, access, Location(STORAGE, 0, 0), frame, "p", Form.of(access, {}))
    where = None
    if masked and draw(st.booleans()):
        count = int(np.prod(window.shape))
        bits = draw(st.lists(st.booleans(), min_size=count, max_size=count))
        where = np.array(bits).reshape(window.shape)
    return Touch(window, window.start([]), where)


def touched(touch: Touch) -> set[int]:
    """The bytes of the storage that an access touches, one by one."""
    window = touch.window
    places = np.ndindex(window.shape)
    starts = [
        touch.start + sum(s * i for s, i in zip(window.strides, place, strict=True))
        for place in places
        if touch.where is None or touch.where[place]
    ]
    return {start + byte for start in starts for byte in range(window.itemsize)}


@given(touches(masked=True), touches(masked=True), st.booleans(), st.booleans())
def test_events_meet_if_bytes_do(first: Touch, second: Touch, writes: bool, wrote: bool) -> None:
    log = Log()
    log.add(first, 0, 7, writes=wrote, keep=lambda _: True)
    seen = np.array([6, 0])
    expected = bool(touched(first) & touched(second)) and (writes or wrote)
    found = list(log.unseen(second, 1, seen, writes=writes))
    assert found == ([(7, wrote, first)] if expected else [])
    assert not list(log.unseen(second, 0, seen, writes=writes)), "of its own stream"
    assert not list(log.unseen(second, 1, np.array([7, 0]), writes=writes)), "seen"


@given(touches(), touches())
def test_windows_without_masks_are_decided_like_their_bytes(first: Touch, second: Touch) -> None:
    rectangles = np.array([first.rectangle, second.rectangle])
    starts, ends = rectangles[:, [0, 2]].max(0), rectangles[:, [1, 3]].min(0)
    if (starts <= ends).all():
        assert first.meets(second) == second.meets(first) == bool(touched(first) & touched(second))


@given(touches())
@settings(max_examples=3)
def test_old_events_make_room_for_new_ones(touch: Touch) -> None:
    log, alive = Log(), set(range(3000))
    for event in range(3000):
        alive -= {event - 10}
        other = Touch(touch.window, touch.start, np.ones(touch.window.shape, bool))
        log.add(other, 0, event, writes=True, keep=alive.__contains__)
    events = [event for event, *_ in log.unseen(touch, 1, np.array([2980, 0]), writes=False)]
    assert events == list(range(2999, 2980, -1))
    assert len(log) < 1100
