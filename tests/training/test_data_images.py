"""Images with labels, of folders, tables and scikit-learn; what is no image is named."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from launch.data.batches import held_out_batches, make_batches
from launch.data.config import DataConfig
from launch.data.image_data import LabelledImages, open_images
from launch.errors import DataError
from models.images import Preprocessing

PLAIN = Preprocessing(size=(4, 4), scale=None)
CLASSES = {"cat": 40, "dog": 80, "emu": 120}  # grey of all their pixels


def image_of(grey: int, kind: str = "PNG") -> bytes:
    buffer = io.BytesIO()
    Image.new(
        "RGB" if kind == "JPEG" else "L", (6, 5), grey if kind == "PNG" else (grey,) * 3
    ).save(buffer, kind)
    return buffer.getvalue()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, grey in CLASSES.items():
        (tmp_path / name).mkdir()
        for number in range(8):
            kind = ("PNG", "JPEG")[number % 2]
            (tmp_path / name / f"{number}.{kind.lower()}").write_bytes(image_of(grey, kind))
    return tmp_path


def opened(data: Path | str, **settings: object) -> LabelledImages:
    config = DataConfig(data=str(data), **settings)  # type: ignore[arg-type]
    return open_images(config, PLAIN, seed=0)


def test_a_folder_is_a_class(folder: Path) -> None:
    images = opened(folder)
    assert images.classes == ("cat", "dog", "emu")
    assert images.data.size == 22
    batches = make_batches(images.data.rows, 22)
    greys = np.array(list(CLASSES.values()))
    for _ in range(2):  # epochs
        batch = next(batches)
        assert (batch["pixels"].shape, batch["pixels"].dtype) == ((22, 4, 4, 3), np.float32)
        wanted = np.broadcast_to(greys[batch["labels"], None, None, None], (22, 4, 4, 3))
        np.testing.assert_array_equal(batch["pixels"], wanted)
    (held_out,) = held_out_batches(images.data.held_out, 5)
    assert held_out["weights"].tolist() == [1, 1, 0, 0, 0]


def test_tables_hold_images_too(tmp_path: Path) -> None:
    greys = [40, 80, 120] * 4
    image = [{"bytes": image_of(grey), "path": None} for grey in greys]
    label = [grey // 4 for grey in greys]  # 10, 20, 30
    pq.write_table(pa.table({"img": image, "label": label}), tmp_path / "a.parquet")
    images = opened(tmp_path / "a.parquet", image_field="img", held_out_fraction=0.0)
    assert images.classes == ("10", "20", "30")
    batch = next(make_batches(images.data.rows, 12))
    assert sorted(batch["pixels"][:, 0, 0, 0]) == sorted(greys)
    np.testing.assert_array_equal(batch["pixels"][:, 0, 0, 0], 40 * (batch["labels"] + 1))


def test_digits_are_bundled() -> None:
    images = open_images(DataConfig(data="digits"), Preprocessing(size=(8, 8)), seed=0)
    assert images.classes == tuple("0123456789")
    assert images.data.size == 1797 - 144
    batch = next(make_batches(images.data.rows, 1653))
    assert (np.bincount(batch["labels"]) > 140).all()
    assert (batch["pixels"].min(), batch["pixels"].max()) == (0.0, 1.0)


def test_files_that_are_no_images(folder: Path) -> None:
    (folder / "cat" / "x.png").write_text("text")
    with pytest.raises(DataError, match=r"cat/x.png: expected an image, such as PNG or JPEG: .*"):
        opened(folder)
    images = opened(folder, bad_records="skip")
    assert str(images.data.counts) == ("25 records, of which 1 cannot be read and are left out")


def test_a_damaged_image_is_named_when_it_is_read(folder: Path) -> None:
    file = folder / "cat" / "0.png"
    file.write_bytes(file.read_bytes()[:50])
    batches = make_batches(opened(folder, held_out_fraction=0.0).data.rows, 24)
    with pytest.raises(DataError, match=r"cat/0.png: the image is damaged: .*"):
        next(batches)


@pytest.mark.parametrize(
    ("data", "settings", "message"),
    [
        ("cat", {}, r"has 1 classes of images \(8 records\)"),
        ("text.jsonl", {}, "line 1: no field 'label'; the fields are 'text'"),
        ("cat:0.5,dog:0.5", {}, "gives weights, which sources of images cannot have"),
        (".", {"held_out_data": "other"}, "other has the classes fox, which --data has not"),
    ],
)
def test_what_does_not_fit(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    data: str,
    settings: dict[str, object],
    message: str,
) -> None:
    (folder / "other").mkdir()
    monkeypatch.chdir(folder)
    if settings:
        (folder / "other" / "fox").mkdir()
        (folder / "other" / "fox" / "1.png").write_bytes(image_of(1))
        settings = {"held_out_data": str(folder / "other")}
        data = ",".join(CLASSES)
    (folder / "text.jsonl").write_text('{"text": "a"}\n')
    with pytest.raises(DataError, match=message):
        opened(data, **settings)
