"""Laws of rows: every token once per epoch, packing never crosses documents."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import grain
import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing

from launch.data.batches import held_out_batches
from launch.data.config import DataConfig
from launch.data.documents import Documents
from launch.data.packings import PACKINGS
from launch.data.pieces import Row
from launch.data.records import Counts
from launch.data.text_data import open_text
from launch.errors import DataError
from launch.text import FileTokenizer
from tests.training.text_files import opened

LENGTHS = st.lists(st.integers(0, 40), min_size=1, max_size=90)
BY_DOCUMENT = ("padded", "first_fit", "concat_then_split")
SEQ_LEN = 16


def numbered(lengths: list[int]) -> Documents:
    """Documents of which no token occurs twice."""
    ends = np.cumsum([0, *lengths])
    return Documents.of([np.arange(a, b, dtype=np.int32) for a, b in pairwise(ends)])


def epoch(documents: Documents, packing: str, **changes: str) -> list[Row]:
    """The rows of all documents, once."""
    way, config = PACKINGS[packing], DataConfig(**changes)  # type: ignore[arg-type]
    pieces = way.training(documents, config, SEQ_LEN, Counts())
    if not len(pieces):
        return []
    return list(way.rows(grain.MapDataset.source(pieces).shuffle(seed=1), SEQ_LEN, 0))


@settings(max_examples=30)
@pytest.mark.parametrize("packing", BY_DOCUMENT)
@given(lengths=LENGTHS)
def test_every_token_is_a_target_once_in_an_epoch(packing: str, lengths: list[int]) -> None:
    documents = numbered(lengths)
    rows = epoch(documents, packing)
    counted = [(row["tokens"][i], row["targets"][i]) for row in rows for i in range(SEQ_LEN)
               if row["weights"][i]]  # fmt: skip
    expected = [
        (token, token + 1)
        for start, end in zip(documents.starts, documents.ends, strict=True)
        for token in range(start, end - 1)
    ]
    assert sorted(counted) == expected


@settings(max_examples=30)
@pytest.mark.parametrize("packing", ["first_fit", "concat_then_split"])
@given(lengths=LENGTHS)
def test_a_segment_is_a_run_of_one_document(packing: str, lengths: list[int]) -> None:
    documents = numbered(lengths)
    owner = np.repeat(np.arange(len(lengths)), lengths)
    for row in epoch(documents, packing):
        for segment in range(1, row["segments"].max() + 1):
            (places,) = np.nonzero(row["segments"] == segment)
            tokens = row["tokens"][places]
            assert (np.diff(places) == 1).all()
            assert (np.diff(tokens) == 1).all()
            assert len(set(owner[[*tokens, *row["targets"][places]]])) == 1
            np.testing.assert_array_equal(row["positions"][places], np.arange(len(places)))
            assert (row["weights"][places] == 1).all()
        padding = row["segments"] == 0
        for name in ("tokens", "targets", "weights", "positions"):
            assert not row[name][padding].any()


@pytest.mark.parametrize("packing", ["padded", "first_fit"])
def test_long_documents_are_cut_as_told(packing: str) -> None:
    documents = numbered([SEQ_LEN + 1, SEQ_LEN + 2, 5])
    for policy, targets in {"split": 37, "truncate": 36, "drop": 20}.items():
        rows = epoch(documents, packing, long_documents=policy)
        assert sum(row["weights"].sum() for row in rows) == targets


def test_rows_cut_at_the_end_have_no_padding() -> None:
    rows = epoch(numbered([7, 50, 3, 20, 33]), "concat_then_split")
    assert [int(row["weights"].sum()) for row in rows] == [16] * 6 + [12]


def test_first_fit_leaves_little_padding() -> None:
    lengths = np.random.default_rng(0).integers(2, 17, 4000).tolist()
    padding = {
        packing: np.mean([row["weights"] == 0 for row in epoch(numbered(lengths), packing)])
        for packing in ("padded", "first_fit")
    }
    assert padding["first_fit"] < padding["padded"] / 4


def test_an_epoch_of_windows_begins_at_every_token_and_the_next_in_another_order() -> None:
    windows = PACKINGS["windows"].training(numbered([40]), DataConfig(), 8, Counts())
    rows = iter(grain.MapDataset.source(windows).seed(0).shuffle().repeat())
    first, second = ([int(next(rows)["tokens"][0]) for _ in range(32)] for _ in range(2))
    assert sorted(first) == sorted(second) == list(range(32))
    assert first != second


def test_held_out_windows_cover_the_end_of_the_text_once() -> None:
    data = opened(None, seq_len=50)
    batches = list(held_out_batches(data.held_out, 7))
    assert {batch["tokens"].shape for batch in batches} == {(7, 50)}
    rows = {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}
    counted = rows["weights"].any(axis=1)
    text = rows["targets"][counted].reshape(-1)
    np.testing.assert_array_equal(rows["tokens"][counted].reshape(-1)[1:], text[:-1])
    everything = opened(None, seq_len=50, held_out_fraction=0.0)
    assert data.size + len(text) == pytest.approx(everything.size, abs=51)
    assert len(text) == pytest.approx(0.08 * everything.size, abs=51)


@pytest.mark.parametrize("packing", BY_DOCUMENT)
def test_held_out_documents_are_not_trained_on(packing: str) -> None:
    documents = numbered(list(range(3, 40)))
    training, held_out = PACKINGS[packing].split(documents, 0.1, SEQ_LEN)
    assert sorted([*training.starts, *held_out.starts]) == sorted(documents.starts)
    assert len(held_out) == 4
    assert np.ptp(held_out.starts) > documents.starts[-1] / 2


def test_evaluation_looks_at_a_limited_part_of_what_is_held_out() -> None:
    limited, whole = (
        opened(None, seq_len=50, held_out_limit=limit).held_out for limit in (7, 10_000)
    )
    windows = [row["tokens"].tobytes() for row in whole]
    some = [row["tokens"].tobytes() for row in limited]
    assert len(some) == 7
    assert set(some) < set(windows)
    assert some == [row["tokens"].tobytes() for row in limited]


def test_documents_have_the_marks_of_their_tokenizer(tmp_path: Path) -> None:
    words = {"<s>": 0, "</s>": 1, "a": 2, "b": 3, "[PAD]": 4}
    tokenizer = tokenizers.Tokenizer(WordLevel(words, unk_token="a"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(pad_id=4, length=9)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "data.jsonl").write_text('{"text": "a b a"}\n{"text": "b"}\n')
    config = DataConfig(
        data=str(tmp_path / "data.jsonl"), document_end="</s>", held_out_fraction=0.0
    )
    data = open_text(
        config, FileTokenizer(tmp_path / "tokenizer.json"), vocab_size=5, seq_len=8, seed=0
    )
    row = next(iter(data.rows))
    texts = [
        [*row["tokens"][row["segments"] == number], row["targets"][row["segments"] == number][-1]]
        for number in (1, 2)
    ]
    assert sorted(texts) == [[0, 2, 3, 2, 1], [0, 3, 1]]


@pytest.mark.parametrize("size", [0, 1, 100])
def test_small_text_is_refused_with_the_size_that_is_enough(size: int) -> None:
    split = PACKINGS["windows"].split
    with pytest.raises(DataError, match=r"too few for windows.*at least (\d+) tokens") as caught:
        split(numbered([size]), 0.08, 16)
    enough = int(str(caught.value).split("at least ")[1].split()[0])
    split(numbered([enough]), 0.08, 16)


@pytest.mark.parametrize(
    ("packing", "targets", "rows"),
    [
        ("windows", [SEQ_LEN] * 10, 11),
        ("padded", [SEQ_LEN] * 10, 10),
        ("padded", [SEQ_LEN // 2] * 10, 10),
        ("first_fit", [SEQ_LEN] * 10, 10),
        ("first_fit", [SEQ_LEN // 2] * 10, 5),
        ("concat_then_split", [SEQ_LEN // 4] * 10, 3),
    ],
)
def test_rows_of_an_epoch(packing: str, targets: list[int], rows: int) -> None:
    """A document has a target less than tokens; windows see one text, of 10 targets more."""
    way = PACKINGS[packing]
    documents = numbered([count + 1 for count in targets])
    pieces = way.training(documents, DataConfig(), SEQ_LEN, Counts())
    assert way.count(pieces, SEQ_LEN, 0) == rows


@pytest.mark.parametrize("packing", BY_DOCUMENT)
def test_only_what_is_to_be_learnt_counts(packing: str) -> None:
    lengths = [10, 40, 3, 12, 20]
    learnt = [np.zeros(n, bool) for n in lengths]
    learnt[0][:4] = learnt[1][30:] = learnt[4][19:] = True
    learnt[2][0] = True  # the first token is never predicted
    documents = Documents.of(list(np.split(np.arange(85), np.cumsum(lengths)[:-1])), learnt)
    counts = Counts()
    pieces = PACKINGS[packing].training(documents, DataConfig(), SEQ_LEN, counts)
    rows = list(PACKINGS[packing].rows(grain.MapDataset.source(pieces), SEQ_LEN, 0))
    targets = sorted(np.concatenate([row["targets"][row["weights"] > 0] for row in rows]))
    assert targets == [1, 2, 3, *range(40, 50), 84]
    assert counts.empty == 2
