"""Text to train on: from --data to rows of tokens."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from typing import Any

import grain

from launch.data.batches import Data
from launch.data.config import DataConfig
from launch.data.documents import Documents, Reader, read_documents
from launch.data.formats import FORMATS
from launch.data.packings import PACKINGS, Packing, Rows
from launch.data.pieces import Row
from launch.data.records import Counts
from launch.data.sources import Source, open_sources
from launch.errors import DataError
from launch.text import Tokenizer


def open_text(
    config: DataConfig,
    tokenizer: Tokenizer,
    *,
    vocab_size: int,
    seq_len: int,
    seed: int,
    reader: Reader | None = None,
) -> Data:
    """Rows of `seq_len` tokens with targets and weights, and with segments and positions if several
    documents share a row. A `reader` turns records into tokens and says which to predict.

    All text is read and tokenized here. Raises DataError for anything that cannot be used, with the
    file and the line.
    """
    sources = open_sources(config.data, config.data_format)
    name = packing_name(config, sources)
    packing, counts = PACKINGS[name], Counts()

    def read(sources: Sequence[Source]) -> Documents:
        return read_documents(
            sources,
            config,
            tokenizer,
            counts,
            vocab_size=vocab_size,
            marks=packing.marks,
            reader=reader,
        )

    weights = [source.weight for source in sources]
    documents = [read([source]) for source in sources] if weights[0] else [read(sources)]
    identity = {"text": _fingerprint(documents), **_settings(config, name), "weights": weights}
    if config.held_out_data is None:
        fraction = config.held_out_fraction
        parts = [packing.split(source, fraction, seq_len) for source in documents]
        documents, held_out = [part[0] for part in parts], [part[1] for part in parts]
    else:
        held_out = [read(open_sources(config.held_out_data, config.data_format))]
    pieces = [packing.training(source, config, seq_len, counts) for source in documents]
    for examples, source in zip(pieces, sources, strict=False):
        if not len(examples):
            where = source.name if weights[0] else config.data
            raise DataError(
                f"--data={where} holds no text to train on: {counts}. Name other data, or change "
                "--long_documents."
            )
    endless = [
        grain.MapDataset.source(examples).seed(seed + number).shuffle().repeat()
        for number, examples in enumerate(pieces)
    ]
    mixed = grain.MapDataset.mix(endless, weights) if weights[0] else endless[0]
    return Data(
        rows=packing.rows(mixed, seq_len, seed),
        held_out=_held_out_rows(packing, held_out, config, seq_len),
        size=sum(int((source.ends - source.starts).sum()) for source in documents),
        rows_of_epoch=lambda: sum(packing.count(source, seq_len, seed) for source in pieces),
        counts=counts,
        identity=identity,
    )


def packing_name(config: DataConfig, sources: Sequence[Source]) -> str:
    """The packing: the setting, or the default for the formats."""
    if config.packing is not None:
        return config.packing
    return "windows" if all(FORMATS[source.format].whole for source in sources) else "first_fit"


def _settings(config: DataConfig, packing: str) -> dict[str, Any]:
    names = ("held_out_data", "held_out_fraction", "long_documents")
    return {name: asdict(config)[name] for name in names} | {"packing": packing}


def _fingerprint(documents: Sequence[Documents]) -> str:
    """The first 16 hexadecimal digits of a SHA-256 of all tokens and where documents end."""
    digest = hashlib.sha256()
    for source in documents:
        digest.update(source.tokens.tobytes())
        digest.update(source.ends.tobytes())
        if source.learnt is not None:
            digest.update(source.learnt.tobytes())
    return digest.hexdigest()[:16]


def _held_out_rows(
    packing: Packing, documents: Sequence[Documents], config: DataConfig, seq_len: int
) -> Iterable[Row]:
    """Every target of the documents that are evaluated, once."""
    everything = replace(config, long_documents="split")
    sources = [packing.held_out(source, everything, seq_len, Counts()) for source in documents]
    kept = [grain.MapDataset.source(source) for source in sources if len(source)]
    if not kept:
        return []
    pieces = grain.MapDataset.concatenate(kept)
    if len(pieces) > config.held_out_limit:
        pieces = pieces.shuffle(seed=0)[: config.held_out_limit]
    rows: Rows = packing.rows(pieces, seq_len, 0)
    return rows
