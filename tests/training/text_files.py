"""Text in every format, and how it is opened."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from launch.data.batches import Data
from launch.data.config import DataConfig
from launch.data.text_data import open_text
from launch.text import ByteTokenizer


def write_jsonl(path: Path, texts: Sequence[object]) -> None:
    path.write_text("".join(json.dumps({"id": 1, "text": text}) + "\n" for text in texts))


def write_compressed(path: Path, texts: Sequence[object]) -> None:
    lines = "".join(json.dumps({"text": text}) + "\n" for text in texts)
    path.write_bytes(gzip.compress(lines.encode()))


def write_parquet(path: Path, texts: Sequence[object]) -> None:
    pq.write_table(pa.table({"id": range(len(texts)), "text": texts}), path, row_group_size=3)


def write_stream(path: Path, texts: Sequence[object]) -> None:
    table = pa.table({"id": range(len(texts)), "text": texts})
    with pa.ipc.new_stream(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=3)


def write_ipc_file(path: Path, texts: Sequence[object]) -> None:
    table = pa.table({"id": range(len(texts)), "text": texts})
    with pa.ipc.new_file(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=3)


def write_saved(path: Path, texts: Sequence[object]) -> None:
    """The folder that `save_to_disk` of Hugging Face's datasets makes, in two files."""
    path.mkdir(parents=True)
    names = [f"data-0000{i}-of-00002.arrow" for i in range(2)]
    half = len(texts) // 2
    for name, part in zip(names, (texts[:half], texts[half:]), strict=True):
        write_stream(path / name, part)
    (path / "dataset_info.json").write_text(json.dumps({"features": {}}))
    files = [{"filename": name} for name in names]
    (path / "state.json").write_text(json.dumps({"_data_files": files, "_split": "train"}))


def write_files(path: Path, texts: Sequence[object]) -> None:
    """A folder with a file of text for each, in a folder of its own."""
    for number, text in enumerate(texts):
        file = path / f"{number:03}" / "text.txt"
        file.parent.mkdir(parents=True)
        file.write_text(str(text))


WRITERS: Mapping[str, Callable[[Path, Sequence[object]], None]] = {
    "train.jsonl": write_jsonl,
    "train.json.gz": write_compressed,
    "train.parquet": write_parquet,
    "stream.arrow": write_stream,
    "file.arrow": write_ipc_file,
    "saved": write_saved,
    "files": write_files,
}
"""Name of the file or folder -> what writes texts to it."""


def opened(path: Path | str | None, seq_len: int = 8, seed: int = 0, **settings: object) -> Data:
    """The data of a path, as bytes."""
    config = DataConfig(data=None if path is None else str(path), **settings)  # type: ignore[arg-type]
    return open_text(config, ByteTokenizer(), vocab_size=256, seq_len=seq_len, seed=seed)


def targets_of(rows: Sequence[Mapping[str, np.ndarray]]) -> list[tuple[int, int]]:
    """Every (token, target) that counts, sorted."""
    pairs = [
        (int(token), int(target))
        for row in rows
        for token, target, weight in zip(row["tokens"], row["targets"], row["weights"], strict=True)
        if weight
    ]
    return sorted(pairs)
