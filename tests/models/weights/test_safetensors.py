"""The file format against the reference implementation, and what damage does to it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file, save_file

from models.errors import WeightsError
from models.weights.safetensors import DTYPES, PlannedTensor, read_header, write_file

SHAPES = [(), (0,), (5,), (3, 4), (2, 0, 3), (2, 3, 1, 2)]
# The numpy side of the reference implementation knows neither float8 nor unsigned above 8 bits.
COMMON = ["F64", "F32", "F16", "BF16", "I64", "I32", "I16", "I8", "U8", "BOOL"]


def tensors_of(dtype: np.dtype[Any]) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    spread = 1 if dtype.kind == "b" else 100
    return {
        f"tensor.{i}": np.asarray(spread * rng.normal(size=shape)).astype(dtype)
        for i, shape in enumerate(SHAPES)
    }


def write(file: Path, tensors: dict[str, np.ndarray]) -> None:
    plan = [PlannedTensor(name, array.dtype, array.shape) for name, array in tensors.items()]
    write_file(file, plan, iter(tensors.values()))


def assert_same(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert set(found) == set(expected)
    for name, array in expected.items():
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape)
        assert found[name].tobytes() == array.tobytes()


@pytest.mark.parametrize("name", COMMON)
def test_reading_is_the_reference_implementation(name: str, tmp_path: Path) -> None:
    tensors = tensors_of(DTYPES[name])
    save_file(tensors, tmp_path / "file.safetensors", metadata={"format": "np"})
    header = read_header(tmp_path / "file.safetensors")
    assert_same({name: tensor.view() for name, tensor in header.items()}, tensors)


@pytest.mark.parametrize("name", COMMON)
def test_the_reference_implementation_reads_what_is_written(name: str, tmp_path: Path) -> None:
    tensors = tensors_of(DTYPES[name])
    write(tmp_path / "file.safetensors", tensors)
    assert_same(load_file(tmp_path / "file.safetensors"), tensors)
    with safe_open(tmp_path / "file.safetensors", framework="np") as opened:
        assert opened.metadata() == {"format": "pt"}


@pytest.mark.parametrize("name", sorted(set(DTYPES) - set(COMMON)))
def test_other_dtypes_go_there_and_back(name: str, tmp_path: Path) -> None:
    tensors = tensors_of(DTYPES[name])
    write(tmp_path / "file.safetensors", tensors)
    header = read_header(tmp_path / "file.safetensors")
    assert_same({name: tensor.view() for name, tensor in header.items()}, tensors)


def sound_file(directory: Path) -> Path:
    file = directory / "file.safetensors"
    write(file, {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.ones(4, np.int8)})
    return file


def with_header(change: Any) -> bytes:
    """A sound file whose header was changed."""
    header = {
        "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
        "b": {"dtype": "I8", "shape": [4], "data_offsets": [24, 28]},
    }
    raw = json.dumps(change(header)).encode()
    return len(raw).to_bytes(8, "little") + raw + bytes(28)


def changed(name: str, **fields: Any) -> Any:
    return lambda header: {**header, name: {**header[name], **fields}}


def nested(depth: int) -> list[Any]:
    return [nested(depth - 1)] if depth else []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "header too small"),
        (b"PK\x03\x04" + bytes(60), "invalid header length"),
        ((10**15).to_bytes(8, "little") + b"{}", "header too large"),
        ((4).to_bytes(8, "little") + b"{\xff\xff}", "invalid UTF-8 in header"),
        (with_header(lambda header: {**header, "c": 3}), "invalid JSON in header"),
        (with_header(changed("a", dtype="F4", shape=[6, 8])), "tensor 'a' .* the dtype 'F4', but"),
        (with_header(changed("a", shape=[2, 4])), "invalid shape, data type, or offset"),
        (with_header(changed("a", shape=[2**62, 2**62, 0])), "overflow"),
        (with_header(changed("a", shape=[1] * 5000 + [6])), "tensor 'a' .* has 5001 axes"),
        (with_header(lambda header: {**header, "c": nested(200)}), "recursion limit exceeded"),
        (with_header(changed("b", data_offsets=[20, 24])), "invalid offset for tensor `b`"),
        (with_header(lambda header: {"a": header["a"]}), "file not fully covered"),
    ],
)
def test_damage_is_one_clear_error(content: bytes, message: str, tmp_path: Path) -> None:
    file = tmp_path / "bad.safetensors"
    file.write_bytes(content)
    with pytest.raises(WeightsError, match=message):
        read_header(file)


def test_every_truncation_is_found(tmp_path: Path) -> None:
    file = sound_file(tmp_path)
    content = file.read_bytes()
    for length in range(len(content)):
        file.write_bytes(content[:length])
        with pytest.raises(WeightsError, match="cut off"):
            read_header(file)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200)
@given(st.data())
def test_what_is_read_from_a_damaged_file_is_what_the_reference_reads(
    tmp_path: Path, data: st.DataObject
) -> None:
    """Whatever bytes of the header change: the same tensors, or an error, never anything else."""
    (tmp_path / "file.safetensors").unlink(missing_ok=True)
    file = sound_file(tmp_path)
    content = bytearray(file.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 29))] = data.draw(st.integers(0, 255))
    file.write_bytes(content)
    try:
        ours = {name: tensor.view() for name, tensor in read_header(file).items()}
    except WeightsError:
        return
    try:
        assert_same(ours, load_file(file))
    except (SafetensorError, KeyError, TypeError):
        return  # the reference is stricter about JSON, or lacks a dtype


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"cannot read .*nothing\.safetensors: No such file"):
        read_header(tmp_path / "nothing.safetensors")


def test_nothing_is_overwritten_and_nothing_is_left_over(tmp_path: Path) -> None:
    file = tmp_path / "file.safetensors"
    file.write_bytes(b"precious")
    with pytest.raises(WeightsError, match="already exists and is not overwritten"):
        write(file, {"a": np.ones(3)})
    assert file.read_bytes() == b"precious"
    assert [path.name for path in tmp_path.iterdir()] == [file.name]


def test_a_failure_while_writing_leaves_no_file(tmp_path: Path) -> None:
    def arrays():
        yield np.ones(3, np.float32)
        raise RuntimeError("the device is gone")

    plan = [PlannedTensor(name, np.dtype(np.float32), (3,)) for name in "ab"]
    with pytest.raises(RuntimeError, match="the device is gone"):
        write_file(tmp_path / "file.safetensors", plan, arrays())
    assert list(tmp_path.iterdir()) == []


def test_views_are_lazy_and_read_only(tmp_path: Path) -> None:
    view = read_header(sound_file(tmp_path))["a"].view()
    assert not view.flags.writeable
    assert not view.flags.owndata
