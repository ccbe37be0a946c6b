"""Files in every format become the same documents; what cannot be read is named."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from launch.data.records import Item, Record, RecordError
from launch.data.sources import open_sources
from launch.errors import DataError
from tests.training.text_files import WRITERS, opened, targets_of, write_jsonl, write_saved

TEXTS = [f"{number} {'äbc' * (number % 5)}" for number in range(20)]
EVERYTHING = {"held_out_fraction": 0.0, "packing": "padded", "seq_len": 40}


def expected(texts: list[str]) -> list[tuple[int, int]]:
    coded = [text.encode() for text in texts]
    return sorted(pair for text in coded for pair in pairwise(text))


def epoch(path: Path | str, **settings: object) -> list[tuple[int, int]]:
    data = opened(path, **{**EVERYTHING, **settings})  # type: ignore[arg-type]
    rows = iter(data.rows)
    return targets_of([next(rows) for _ in range(data.counts.records - data.counts.empty)])


@pytest.mark.parametrize("name", WRITERS)
def test_formats_hold_the_same_documents(tmp_path: Path, name: str) -> None:
    WRITERS[name](tmp_path / name, TEXTS)
    assert epoch(tmp_path / name) == expected(TEXTS)


def test_patterns_folders_and_lists_of_sources(tmp_path: Path) -> None:
    for number in range(4):
        write_jsonl(tmp_path / f"{number}.jsonl", TEXTS[5 * number : 5 * number + 5])
    (tmp_path / ".hidden.jsonl").write_text("{")
    assert epoch(tmp_path) == expected(TEXTS)
    assert epoch(f"{tmp_path}/[01].jsonl") == expected(TEXTS[:10])
    assert epoch(f"{tmp_path}/2.jsonl,{tmp_path}/0.jsonl") == expected(TEXTS[10:15] + TEXTS[:5])


def test_tokens_may_be_given_instead_of_text(tmp_path: Path) -> None:
    lists = [list(text.encode()) for text in TEXTS]
    pq.write_table(pa.table({"input_ids": lists}), tmp_path / "tokens.parquet")
    assert epoch(tmp_path / "tokens.parquet", text_field="input_ids") == expected(TEXTS)


def test_built_in_text_is_the_language_reference_without_repetitions() -> None:
    (item,) = open_sources(None, None)[0].items()
    text = item.fields["text"]  # type: ignore[union-attr]
    assert len(text) > 300_000
    assert 'The "assert" statement' in text
    paragraphs = text.split("\n\n")
    assert len(paragraphs) == len(set(paragraphs))


def test_what_is_left_out_is_counted(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "a.jsonl", ["", "a", None, "b" * 9, "c" * 10, "d" * 30, "ef"])
    with (tmp_path / "a.jsonl").open("a") as file:
        file.write("\n{\n[1]\n" + json.dumps({"text": 5}) + "\n")
    settings = {"held_out_fraction": 0.0, "packing": "padded", "bad_records": "skip"}
    for policy, words in {
        "split": "2 are longer than a row and split",
        "truncate": "2 are longer than a row and truncated",
        "drop": "2 are longer than a row and left out",
    }.items():
        counts = opened(tmp_path / "a.jsonl", long_documents=policy, **settings).counts
        assert str(counts) == (
            f"10 records, of which 3 cannot be read and are left out, 3 are empty and left out, "
            f"{words}"
        )


BAD: dict[str, tuple[Callable[[Path], object], str, dict[str, object], str]] = {
    # what is written, name of the file, settings, message
    "missing": (lambda path: None, "a.jsonl", {}, r"cannot read --data=.*a.jsonl: No such file"),
    "not UTF-8 text": (
        lambda path: path.write_bytes(b"\xff\xfe\x00a"),
        "a.txt",
        {},
        r"not UTF-8 text: byte 0xff at offset 0.*iconv",
    ),
    "binary": (
        lambda path: path.write_bytes(b"ab\0"),
        "a",
        {},
        "is binary: a zero byte at offset 2",
    ),
    "not JSON": (
        lambda path: path.write_text('{"text": "a"}\n\n{"text": }\n'),
        "a.jsonl",
        {},
        r"a.jsonl, line 3: expected a JSON object, but: Expecting value at column 10",
    ),
    "cut JSON": (
        lambda path: path.write_text('{"text": "a"}\n{"text": "abc'),
        "a.jsonl",
        {},
        r"a.jsonl, line 2: expected a JSON object, but: Unterminated string",
    ),
    "deep JSON": (
        lambda path: path.write_text("[" * 100_000),
        "a.jsonl",
        {},
        r"a.jsonl, line 1: expected a JSON object, but: .*recursion",
    ),
    "cut off": (
        lambda path: path.write_text('{"text": "a"\n'),
        "a.jsonl",
        {},
        r"line 1: expected a JSON object, but: Expecting ',' delimiter at column 13\.",
    ),
    "a list": (
        lambda path: path.write_text('["text"]\n'),
        "a.jsonl",
        {},
        "line 1: expected a JSON object, not a list",
    ),
    "not UTF-8 JSON": (
        lambda path: path.write_bytes(b'{"text": "a"}\n{"text": "\xe4"}\n'),
        "a.jsonl",
        {},
        "line 2: not UTF-8 text: byte 0xe4 at column 11",
    ),
    "half of a surrogate pair": (
        lambda path: path.write_text(r'{"text": "\ud83d\ude00"}' + "\n" + r'{"text": "a\uD83D"}'),
        "a.jsonl",
        {},
        r"a.jsonl, line 2: expected text, but \\ud83d is an unpaired surrogate",
    ),
    "no field": (
        lambda path: path.write_text('{"content": "a", "id": 1}\n'),
        "a.jsonl",
        {},
        r"line 1: no field 'text'; the fields are 'content', 'id'\. .*--text_field",
    ),
    "a number": (
        lambda path: path.write_text('{"text": 1}\n'),
        "a.jsonl",
        {},
        r"line 1: expected a string or a list of integers in the field 'text', not 1\.",
    ),
    "tokens beyond the vocabulary": (
        lambda path: path.write_text('{"text": [1, 256]}\n'),
        "a.jsonl",
        {},
        "line 1: the token IDs range from 1 to 256, but the model's vocabulary has 256",
    ),
    "no column": (
        lambda path: pq.write_table(pa.table({"content": ["a"]}), path),
        "a.parquet",
        {},
        r"a.parquet: no field 'text'; the fields are 'content'",
    ),
    "no parquet": (
        lambda path: path.write_bytes(b"PAR1 and nothing"),
        "a.parquet",
        {},
        "a.parquet cannot be read as a parquet file: ",
    ),
    "no arrow": (
        lambda path: path.write_bytes(b"something else entirely"),
        "a.arrow",
        {},
        "a.arrow cannot be read as an arrow file: ",
    ),
    "cut arrow": (
        lambda path: (
            WRITERS["stream.arrow"](path, TEXTS),
            path.write_bytes(path.read_bytes()[:-300]),
        ),
        "a.arrow",
        {},
        "a.arrow cannot be read as an arrow file: ",
    ),
    "no gzip": (
        lambda path: path.write_bytes(b"text"),
        "a.jsonl.gz",
        {},
        r"cannot read --data=.*a.jsonl.gz: Not a gzipped file",
    ),
    "empty": (
        lambda path: path.write_text(""),
        "a.jsonl",
        {},
        r"--data has 0 documents, too few",
    ),
    "nothing to predict": (
        lambda path: write_jsonl(path, ["a", "", "b"]),
        "a.jsonl",
        {"held_out_fraction": 0.0},
        "holds no text to train on: 3 records, of which 3 are empty",
    ),
    "a folder without data": (
        lambda path: path.mkdir(),
        "folder",
        {},
        r"folder holds no file of a known format: file names must end in .*\.jsonl",
    ),
    "a folder of two formats": (
        lambda path: (path.mkdir(), (path / "a.txt").touch(), (path / "b.jsonl").touch()),
        "folder",
        {},
        "folder holds files of several formats, jsonl, text. Choose one with --data_format",
    ),
    "a folder of documentation with a picture": (
        lambda path: (path.mkdir(), (path / "a.md").touch(), (path / "b.png").touch()),
        "folder",
        {},
        "folder holds files of several formats, images, text. Choose one with --data_format",
    ),
    "one document": (
        lambda path: write_jsonl(path, ["a text"]),
        "a.jsonl",
        {},
        r"--data has 1 document, too few to hold out 8%\..*--held_out_fraction=0",
    ),
    "a dictionary of data sets": (
        lambda path: (
            write_saved(path / "train", TEXTS),
            (path / "dataset_dict.json").write_text('{"splits": ["train"]}'),
        ),
        "folder",
        {},
        "is a dictionary of data sets: train. Name one of them, such as --data=.*folder/train",
    ),
    "a data set without its files": (
        lambda path: (write_saved(path, TEXTS), (path / "state.json").write_text("{}")),
        "folder",
        {},
        r"state.json cannot be used: expected the list of the data set's files .*_data_files",
    ),
    "an unknown format": (
        lambda path: path.touch(),
        "a",
        {"data_format": "csv"},
        "--data_format=csv is unknown; choose one of text, jsonl, parquet, arrow, images",
    ),
    "an unknown end": (
        lambda path: write_jsonl(path, TEXTS),
        "a.jsonl",
        {"document_end": "</s>"},
        "--document_end=</s> is not a single token of the tokenizer, which splits text into bytes",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_read_is_named(tmp_path: Path, case: str) -> None:
    write, name, settings, message = BAD[case]
    write(tmp_path / name)
    with pytest.raises(DataError, match=message):
        opened(tmp_path / name, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("A:x,B:1", r"the weight 'x' is not a positive number\. Write PATH:WEIGHT"),
        ("A:0,B:1", "the weight '0' is not a positive number"),
        ("A:-1,B:1", "the weight '-1' is not a positive number"),
        ("A:nan,B:1", "the weight 'nan' is not a positive number"),
        ("A:inf,B:1", "the weight 'inf' is not a positive number"),
        ("A:1,B", "gives some sources a weight, but not .*b.jsonl"),
        (",", "names no source"),
    ],
)
def test_weights_that_do_not_fit(tmp_path: Path, data: str, message: str) -> None:
    for name in "ab":
        write_jsonl(tmp_path / f"{name}.jsonl", TEXTS)
        data = data.replace(name.upper(), str(tmp_path / f"{name}.jsonl"))
    with pytest.raises(DataError, match=message):
        opened(data)


@pytest.mark.parametrize("packing", ["windows", "padded", "first_fit", "concat_then_split"])
def test_mixtures_draw_by_weight(tmp_path: Path, packing: str) -> None:
    for name in "ab":  # as many tokens in a row of either
        write_jsonl(tmp_path / f"{name}.jsonl", [name * 9] * (20 if name == "a" else 200))
    data = opened(f"{tmp_path}/a.jsonl:3,{tmp_path}/b.jsonl:1", packing=packing)
    rows = iter(data.rows)
    tokens = np.stack([next(rows)["tokens"] for _ in range(400)])
    assert np.mean(tokens == ord("a")) == pytest.approx(0.75, abs=0.01)
    held_out = np.stack([row["tokens"] for row in data.held_out])
    assert {ord("a"), ord("b")} <= set(np.unique(held_out))


def test_a_folder_of_images_is_a_class(tmp_path: Path) -> None:
    for label in ("cat", "dog"):
        (tmp_path / label).mkdir()
        for suffix in ("png", "jpg"):
            Image.new("RGB", (6, 5)).save(tmp_path / label / f"a.{suffix}")
    (source,) = open_sources(str(tmp_path), None)
    records = [item for item in source.items() if isinstance(item, Record)]
    assert [record.fields["label"] for record in records] == ["cat", "cat", "dog", "dog"]
    assert records[0].fields["image"] == tmp_path / "cat" / "a.jpg"

    (tmp_path / "cat" / "b.png").write_text("text")
    (error,) = [item for item in source_items(tmp_path) if isinstance(item, RecordError)]
    assert f"{tmp_path}/cat/b.png: expected an image, such as PNG or JPEG: " in str(error)


def source_items(path: Path) -> list[Item]:
    return [item for source in open_sources(str(path), None) for item in source.items()]


def test_digits_are_bundled() -> None:
    records = [item for item in source_items(Path("digits")) if isinstance(item, Record)]
    images = np.stack([record.fields["image"] for record in records])
    assert (images.shape, images.dtype) == ((1797, 8, 8, 3), np.uint8)
    assert (images.min(), images.max()) == (0, 255)
    counts = np.bincount([int(record.fields["label"]) for record in records])
    assert len(counts) == 10
    assert (counts > 170).all()
