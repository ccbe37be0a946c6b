"""Tensors of PyTorch's files (`pytorch_model.bin`), found without running what is in them.

A file is a pickle beside the bytes of its storages: in a zip archive, or, as PyTorch wrote before
1.6, one after another (torch/serialization.py, `_save` and `_legacy_save`). Pickles may call any
function; this reader knows those that make tensors and refuses every other one.
"""

import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from os import SEEK_END
from pathlib import Path
from typing import IO, Any, BinaryIO

import numpy as np

from models.errors import WeightsError
from models.weights.safetensors import DTYPES, StoredTensor

_MAGIC, _PROTOCOL = 0x1950A86A20F9469CFC6C, 1001  # of the older layout
_COUNT_BYTES = 8  # before each of its storages
_LOCAL_HEADER_BYTES = 30  # of a zip archive's member, before its name
_NAME_LENGTHS = slice(26, 30)  # of the name and of the extra field, two bytes each
_STORAGES: Mapping[str, str] = {
    "DoubleStorage": "F64",
    "FloatStorage": "F32",
    "HalfStorage": "F16",
    "BFloat16Storage": "BF16",
    "LongStorage": "I64",
    "IntStorage": "I32",
    "ShortStorage": "I16",
    "CharStorage": "I8",
    "ByteStorage": "U8",
    "BoolStorage": "BOOL",
}
"""Class of a storage -> the name of its dtype."""


@dataclass(frozen=True)
class _Storage:
    dtype: str
    key: str
    length: int  # numbers


@dataclass(frozen=True)
class _Tensor:
    storage: _Storage
    begin: int  # number of its first element in the storage
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # elements


class _Reader(pickle.Unpickler):
    """An unpickler that makes descriptions of tensors, and nothing else."""

    def __init__(self, stream: BinaryIO | IO[bytes]) -> None:
        super().__init__(stream)
        self.storages: dict[str, _Storage] = {}

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if module == "torch" and name in _STORAGES:
            return _STORAGES[name]
        if module == "torch._utils" and name in ("_rebuild_tensor", "_rebuild_tensor_v2"):
            return lambda storage, begin, shape, strides, *_: _tensor(
                storage, begin, shape, strides
            )
        if module == "torch._utils" and name == "_rebuild_parameter":
            return lambda tensor, *_: tensor
        raise pickle.UnpicklingError(
            f"it calls {module}.{name}, which is refused: only tensors are read"
        )

    def persistent_load(self, pid: Any) -> _Storage:
        kind, dtype, key, _, length, *_ = pid
        if kind != "storage" or dtype not in DTYPES or not isinstance(length, int):
            raise pickle.UnpicklingError(f"{pid!r} is no storage")
        return self.storages.setdefault(str(key), _Storage(dtype, str(key), length))


def _tensor(storage: Any, begin: Any, shape: Any, strides: Any) -> _Tensor:
    sizes, steps = tuple(shape), tuple(strides)
    numbers = (begin, *sizes, *steps)
    if not isinstance(storage, _Storage) or len(sizes) != len(steps):
        raise pickle.UnpicklingError("a tensor has no storage, or no stride for each axis")
    if not all(type(number) is int and number >= 0 for number in numbers):
        raise pickle.UnpicklingError(
            f"a tensor has sizes or strides that are no numbers: {numbers}"
        )
    end = begin + sum((size - 1) * step for size, step in zip(sizes, steps, strict=True)) + 1
    if 0 not in sizes and end > storage.length:
        raise pickle.UnpicklingError(
            f"a tensor ends at {end}, but its storage has {storage.length} numbers"
        )
    return _Tensor(storage, begin, sizes, steps)


def read_pickled(file: Path) -> dict[str, StoredTensor]:
    """The tensors of a file by name; their numbers stay in the file until they are looked at.

    Raises WeightsError if it is missing, damaged, or holds anything besides tensors.
    """
    try:
        with file.open("rb") as stream:
            is_archive = zipfile.is_zipfile(stream)
            stream.seek(0)
            values, offsets = (_archive if is_archive else _sequence)(stream)
        return {name: _locate(file, name, value, offsets) for name, value in values.items()}
    except OSError as error:
        raise WeightsError(f"cannot read {file}: {error.strerror or error}") from error
    except Exception as error:  # a pickle may raise anything
        raise WeightsError(
            f"{file} cannot be read as a file of PyTorch's tensors: {error}. Convert the "
            "checkpoint to safetensors, or download it again."
        ) from error


Offset = Callable[[_Storage], int]


def _archive(stream: BinaryIO) -> tuple[dict[str, Any], Offset]:
    archive = zipfile.ZipFile(stream)
    members = {info.filename: info for info in archive.infolist()}
    pickled = next((name for name in members if name.endswith("/data.pkl")), None)
    if pickled is None:
        raise ValueError("it is an archive without data.pkl")
    root = pickled.removesuffix("data.pkl")
    if f"{root}byteorder" in members and archive.read(f"{root}byteorder") != b"little":
        raise ValueError("its numbers are big-endian")
    with archive.open(pickled) as data:
        values = _named(_Reader(data).load())
    offsets = {}
    length = stream.seek(0, SEEK_END)
    for name, info in members.items():
        if name.startswith(f"{root}data/") and info.compress_type == zipfile.ZIP_STORED:
            stream.seek(info.header_offset)
            lengths = np.frombuffer(stream.read(_LOCAL_HEADER_BYTES)[_NAME_LENGTHS], "<u2")
            begin = info.header_offset + _LOCAL_HEADER_BYTES + int(lengths.sum(dtype=np.int64))
            end = min(begin + info.file_size, length)  # whatever the directory of the file says
            offsets[name.removeprefix(f"{root}data/")] = (begin, end)

    def offset(storage: _Storage) -> int:
        if storage.key not in offsets:
            raise ValueError(f"storage {storage.key} is missing, or compressed")
        begin, end = offsets[storage.key]
        if end - begin < storage.length * DTYPES[storage.dtype].itemsize:
            raise ValueError(f"storage {storage.key} is cut off")
        return begin

    return values, offset


def _sequence(stream: BinaryIO) -> tuple[dict[str, Any], Offset]:
    if (_Reader(stream).load(), _Reader(stream).load()) != (_MAGIC, _PROTOCOL):
        raise ValueError("it is no file of PyTorch")
    if not _Reader(stream).load().get("little_endian", True):
        raise ValueError("its numbers are big-endian")
    reader = _Reader(stream)
    values = _named(reader.load())
    keys = _Reader(stream).load()
    end = stream.tell()
    length = stream.seek(0, SEEK_END)
    offsets = {}
    for key in map(str, keys):
        stream.seek(end)
        count = int.from_bytes(stream.read(_COUNT_BYTES), "little")
        begin = end + _COUNT_BYTES
        end = begin + count * DTYPES[reader.storages[key].dtype].itemsize
        if end > length:
            raise ValueError(f"storage {key} is cut off")
        offsets[key] = begin
    return values, lambda storage: offsets[storage.key]


def _named(values: Any) -> dict[str, _Tensor]:
    """The tensors of a state dict by name, or of the one within a checkpoint of training."""
    if isinstance(values, dict) and isinstance(values.get("state_dict"), dict):
        values = values["state_dict"]
    if not isinstance(values, dict):
        raise ValueError("it holds no state dict")
    others = [name for name, value in values.items() if not isinstance(value, _Tensor)]
    if others:
        raise ValueError(f"{others[0]!r} is not a tensor")
    return {str(name): value for name, value in values.items()}


def _locate(file: Path, name: str, tensor: _Tensor, offset: Offset) -> StoredTensor:
    dtype = DTYPES[tensor.storage.dtype]
    begin = offset(tensor.storage) + tensor.begin * dtype.itemsize
    return StoredTensor(file, name, dtype, tensor.shape, begin, tensor.strides)
