"""Tensors of safetensors files that are read lazily, and files written one tensor at a time.

The safetensors library reads and checks headers. It copies what it reads, has no NumPy types for
FP8, and writes only what is in memory as a whole; so bytes are read and written here.

Format: 8 bytes little-endian header length, a JSON header {name: {dtype, shape, data_offsets}},
the tensors' bytes without gaps (huggingface.co/docs/safetensors, "Format").
"""

import json
import mmap
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from math import prod
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from safetensors import SafetensorError, safe_open

from models.errors import WeightsError

DTYPES: Mapping[str, np.dtype[Any]] = {
    "F64": np.dtype(np.float64),
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
    "I64": np.dtype(np.int64),
    "I32": np.dtype(np.int32),
    "I16": np.dtype(np.int16),
    "I8": np.dtype(np.int8),
    "U64": np.dtype(np.uint64),
    "U32": np.dtype(np.uint32),
    "U16": np.dtype(np.uint16),
    "U8": np.dtype(np.uint8),
    "BOOL": np.dtype(np.bool_),
}
WRITTEN_AS: Mapping[np.dtype[Any], np.dtype[Any]] = {
    np.dtype(ml_dtypes.float8_e4m3): np.dtype(ml_dtypes.float8_e4m3fn)
}
"""Types that the format has no name for -> one that has all of their finite numbers."""

NAMES: Mapping[np.dtype[Any], str] = {dtype: name for name, dtype in DTYPES.items()}
_LENGTH_BYTES = 8
_MOST_AXES = 32


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a file."""

    file: Path
    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset: int  # of its first byte in the file
    strides: tuple[int, ...] | None = None  # elements from one place of an axis to the next;
    # None: the last axis lies together, then the one before it, and so on

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize

    def view(self) -> np.ndarray:
        """A read-only array over the file's own pages: what is not looked at is not read.

        Its pages leave memory with the array.
        """
        if self.nbytes == 0:
            return np.zeros(self.shape, self.dtype)
        begin = self.offset - self.offset % mmap.ALLOCATIONGRANULARITY
        spanned = self.nbytes
        if self.strides is not None:
            steps = zip(self.shape, self.strides, strict=True)
            spanned = (sum((size - 1) * step for size, step in steps) + 1) * self.dtype.itemsize
        with self.file.open("rb") as stream:
            pages = mmap.mmap(
                stream.fileno(),
                self.offset + spanned - begin,
                access=mmap.ACCESS_READ,
                offset=begin,
            )
        flat = np.frombuffer(pages, np.uint8, spanned, self.offset - begin).view(self.dtype)
        if self.strides is None:
            return flat.reshape(self.shape)
        in_bytes = [step * self.dtype.itemsize for step in self.strides]
        return np.lib.stride_tricks.as_strided(flat, self.shape, in_bytes, writeable=False)


def read_header(file: Path) -> dict[str, StoredTensor]:
    """The tensors of a file by name.

    Raises WeightsError if it is missing, truncated or no safetensors file.
    """
    tensors = {}
    with _open_file(file) as (opened, offset):
        for name in opened.offset_keys():  # the library has checked that no byte is left over
            header = opened.get_slice(name)
            tensor = _tensor(file, name, header.get_dtype(), tuple(header.get_shape()), offset)
            tensors[name] = tensor
            offset += tensor.nbytes
    return tensors


def read_metadata(file: Path) -> dict[str, str]:
    """The texts that a file says of itself by name.

    Raises WeightsError if it is missing, truncated or no safetensors file.
    """
    with _open_file(file) as (opened, _):
        return dict(opened.metadata() or {})


@contextmanager
def _open_file(file: Path) -> Iterator[tuple[safe_open, int]]:
    """The library's reader, and where the tensors begin in the file."""
    try:
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(_LENGTH_BYTES), "little")
        with safe_open(file, framework="numpy") as opened:
            yield opened, _LENGTH_BYTES + length
    except OSError as error:
        raise WeightsError(f"cannot read {file}: {error.strerror or error}") from error
    except SafetensorError as error:
        raise WeightsError(
            f"{file} is not a safetensors file, or it is damaged or was cut off: {error}. Download "
            "or save it again, or convert the checkpoint to safetensors."
        ) from error


def _tensor(file: Path, name: str, dtype: str, shape: tuple[int, ...], offset: int) -> StoredTensor:
    if dtype not in DTYPES:
        raise WeightsError(
            f"tensor {name!r} in {file} has the dtype {dtype!r}, but only {', '.join(DTYPES)} are "
            "supported"
        )
    if len(shape) > _MOST_AXES:
        raise WeightsError(
            f"tensor {name!r} in {file} has {len(shape)} axes, but an array has at most "
            f"{_MOST_AXES}. The file is damaged."
        )
    return StoredTensor(file, name, DTYPES[dtype], shape, offset)


@dataclass(frozen=True)
class PlannedTensor:
    """A tensor that will be written."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize


def write_file(file: Path, plan: list[PlannedTensor], arrays: Iterable[np.ndarray]) -> None:
    """Writes the planned tensors, whose values `arrays` yields in the same order, one at a time.

    The file appears under its name when it is complete. Raises WeightsError if it exists or
    cannot be written.
    """
    ends = [0, *accumulate(tensor.nbytes for tensor in plan)]
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}  # readers look for the format
    for tensor, begin, end in zip(plan, ends, ends[1:], strict=False):
        header[tensor.name] = {
            "dtype": NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [begin, end],
        }
    raw = json.dumps(header, separators=(",", ":")).encode()
    raw += b" " * (-len(raw) % _LENGTH_BYTES)  # tensors begin at a multiple of 8
    partial = file.with_name(f".{file.name}.partial")
    try:
        with partial.open("xb") as stream:
            stream.write(len(raw).to_bytes(_LENGTH_BYTES, "little") + raw)
            for tensor, array in zip(plan, arrays, strict=True):
                if array.dtype != tensor.dtype or array.shape != tensor.shape:
                    raise TypeError(
                        f"{tensor.name} was planned as {tensor.dtype} {tensor.shape}, but is "
                        f"{array.dtype} {array.shape}"
                    )
                stream.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        os.link(partial, file)  # unlike a rename it fails if the name is taken
    except FileExistsError as error:
        raise WeightsError(
            f"{error.filename2 or error.filename} already exists and is not overwritten. Give "
            "another directory."
        ) from error
    except OSError as error:
        raise WeightsError(f"cannot write {file}: {error.strerror}") from error
    finally:
        partial.unlink(missing_ok=True)
