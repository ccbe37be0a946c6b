"""Rows of several texts, for tasks whose labels are of tokens."""

from collections.abc import Sequence

import numpy as np

from launch.finetuning.text_examples import Row


def packed(rows: Sequence[Row]) -> list[Row]:
    """Packs texts into fewer rows: each goes into the first row that has room for it.

    Every array of a row has the shape [T], and `real` says where its text stands: at the
    beginning. A packed row has instead `segments`, which number its texts from 1 and are 0 at
    padding, and `positions`, the places of tokens in their texts.
    """
    bins: list[list[Row]] = []
    room: list[int] = []
    for row in rows:
        length = _length(row)
        place = next((n for n, free in enumerate(room) if free >= length), len(bins))
        if place == len(bins):
            bins.append([])
            room.append(len(row["real"]))
        bins[place].append(row)
        room[place] -= length
    return [_join_texts(texts) for texts in bins]


def _join_texts(texts: Sequence[Row]) -> Row:
    first = texts[0]
    row = {name: np.array(values) for name, values in first.items() if name != "real"}
    segments, positions = (np.zeros(len(first["real"]), np.int32) for _ in range(2))
    begin = 0
    for number, text in enumerate(texts, start=1):
        length = _length(text)
        there = slice(begin, begin + length)
        for name, values in row.items():
            values[there] = text[name][:length]
        segments[there], positions[there] = number, np.arange(length)
        begin += length
    return row | {"segments": segments, "positions": positions}


def _length(row: Row) -> int:
    return int(row["real"].sum())
