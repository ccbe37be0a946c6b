"""Examples of a task to train on: from --data to rows."""

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import grain
import jax
import numpy as np

from launch.data.batches import Data
from launch.data.config import DataConfig
from launch.data.records import Counts, Record, RecordError
from launch.data.sources import Source, open_sources
from launch.errors import DataError
from launch.finetuning.text_examples import Row

Read = Callable[[Record], Row | None]  # None: the record is left out, and counted
Finish = Callable[[Row], Row]
Pack = Callable[[Sequence[Row]], list[Row]]


def read_records(config: DataConfig, counts: Counts) -> list[list[Record]]:
    """The records of every source of --data. Raises DataError for what cannot be read, unless it
    is to be left out."""
    sources = open_sources(config.data, config.data_format)
    return [_records(source, config, counts) for source in sources]


def open_examples(
    records: Sequence[Sequence[Record]],
    config: DataConfig,
    read: Read,
    finish: Finish | None,
    counts: Counts,
    *,
    seed: int,
    pack: Pack = list,
) -> Data:
    """Rows of the records of each source; `pack` puts several into one, and `finish` makes of a row
    what is too large to be kept.

    Raises DataError if there is nothing to train on, or a record cannot be used.
    """
    weights = [source.weight for source in open_sources(config.data, config.data_format)]
    rows = [_rows(source, config, read, counts) for source in records]
    if not weights[0]:
        rows = [[row for source in rows for row in source]]
    identity: dict[str, Any] = {"examples": _fingerprint(rows), "weights": weights}
    if config.held_out_data is None:
        parts = [_split(source, config.held_out_fraction) for source in rows]
        rows, held_out = [part[0] for part in parts], [row for part in parts for row in part[1]]
        identity["held_out_fraction"] = config.held_out_fraction
    else:
        others = open_sources(config.held_out_data, config.data_format)
        apart = Counts()
        held_out = [
            row
            for source in others
            for row in _rows(_records(source, config, apart), config, read, apart)
        ]
    if not all(rows):
        raise DataError(
            f"--data={config.data} holds no examples to train on: {counts}. Name other data, or "
            "raise --seq_len."
        )
    size = sum(len(source) for source in rows)
    rows, held_out = [pack(source) for source in rows], pack(held_out)
    identity |= {} if pack is list else {"packed": [len(source) for source in rows]}
    endless = [
        grain.MapDataset.source(source).seed(seed + number).shuffle().repeat()
        for number, source in enumerate(rows)
    ]
    mixed = grain.MapDataset.mix(endless, weights) if weights[0] else endless[0]
    whole = finish or (lambda row: row)
    return Data(
        rows=mixed.map(whole),
        held_out=[] if not held_out else grain.MapDataset.source(held_out).map(whole),
        size=size,
        rows_of_epoch=lambda: sum(len(source) for source in rows),
        counts=counts,
        identity=identity,
    )


def _records(source: Source, config: DataConfig, counts: Counts) -> list[Record]:
    records = []
    for item in source.items():
        counts.records += 1
        if isinstance(item, Record):
            records.append(item)
        elif config.bad_records == "skip":
            counts.unreadable += 1
        else:
            raise item
    return records


def _rows(records: Sequence[Record], config: DataConfig, read: Read, counts: Counts) -> list[Row]:
    rows = []
    for record in records:
        try:
            row = read(record)
        except RecordError:
            if config.bad_records != "skip":
                raise
            counts.unreadable += 1
            continue
        if row is not None:
            rows.append(row)
    return rows


def _split(rows: list[Row], fraction: float) -> tuple[list[Row], list[Row]]:
    """Rows to train on, and rows spread evenly over all that are held out."""
    count = max(1, round(len(rows) * fraction)) if fraction and len(rows) > 1 else 0
    places = {int((number + 0.5) * len(rows) / count) for number in range(count)}
    return (
        [row for place, row in enumerate(rows) if place not in places],
        [row for place, row in enumerate(rows) if place in places],
    )


def _fingerprint(rows: Any) -> str:
    """The first 16 hexadecimal digits of a SHA-256 of all that is in the rows."""
    digest = hashlib.sha256()
    for leaf in jax.tree.leaves(rows):
        is_array = isinstance(leaf, np.ndarray | np.generic)
        digest.update(leaf.tobytes() if is_array else str(leaf).encode())
    return digest.hexdigest()[:16]
