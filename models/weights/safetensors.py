"""The safetensors file format: tensors that are read lazily, files that are written in order.

Format: 8 bytes little-endian header length, a JSON header {name: {dtype, shape, data_offsets}},
the tensors' bytes without gaps (huggingface.co/docs/safetensors, "Format").
"""

import json
import mmap
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate
from math import prod
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

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
_LONGEST_HEADER = 100_000_000  # as the reference implementation


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a file."""

    file: Path
    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset: int  # of its first byte in the file

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
        with self.file.open("rb") as stream:
            pages = mmap.mmap(
                stream.fileno(),
                self.offset + self.nbytes - begin,
                access=mmap.ACCESS_READ,
                offset=begin,
            )
        flat = np.frombuffer(pages, np.uint8, self.nbytes, self.offset - begin)
        return flat.view(self.dtype).reshape(self.shape)


def read_header(file: Path) -> dict[str, StoredTensor]:
    """The tensors of a file by name.

    Raises WeightsError if it is missing, truncated or no safetensors file.
    """
    header, length, size = _read_json(file)
    header.pop("__metadata__", None)
    try:
        tensors = {name: _tensor(file, name, row, length) for name, row in header.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        if isinstance(error, WeightsError):
            raise
        raise WeightsError(f"the header of {file} cannot be used: {error!r}") from error
    _check_extent(file, size, _LENGTH_BYTES + length, tensors)
    return tensors


def read_metadata(file: Path) -> dict[str, str]:
    """The texts that a file says of itself by name.

    Raises WeightsError if it is missing, truncated or no safetensors file.
    """
    metadata = _read_json(file)[0].get("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise WeightsError(f"the metadata of {file} must be a JSON object of strings")
    return metadata


def _read_json(file: Path) -> tuple[dict[str, Any], int, int]:
    """The header, its length, and the size of the file in bytes."""
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(_LENGTH_BYTES), "little")
            raw = stream.read(length) if length <= min(size, _LONGEST_HEADER) else b""
    except OSError as error:
        raise WeightsError(f"cannot read {file}: {error.strerror}") from error
    if size < _LENGTH_BYTES + length or not raw.startswith(b"{"):
        raise WeightsError(
            f"{file} ({size} bytes) is not a safetensors file, or it was cut off within its "
            "header. Download it again, or convert the checkpoint to safetensors."
        )
    try:
        header: dict[str, Any] = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise WeightsError(f"the header of {file} cannot be used: {error!r}") from error
    return header, length, size


def _tensor(file: Path, name: str, row: Mapping[str, Any], header_length: int) -> StoredTensor:
    if row["dtype"] not in DTYPES:
        raise WeightsError(
            f"tensor {name!r} in {file} has the dtype {row['dtype']!r}, but only "
            f"{', '.join(DTYPES)} are supported"
        )
    shape, (begin, end) = _integers(row["shape"]), _integers(row["data_offsets"])
    tensor = StoredTensor(
        file, name, DTYPES[row["dtype"]], shape, _LENGTH_BYTES + header_length + begin
    )
    if len(shape) > _MOST_AXES or prod(size or 1 for size in shape) >= 2**63:
        raise WeightsError(
            f"tensor {name!r} in {file} has {len(shape)} axes, {str(list(shape))[:80]}, which no "
            "array can have. The file is damaged."
        )
    if min(shape, default=0) < 0 or begin < 0 or end - begin != tensor.nbytes:
        raise WeightsError(
            f"tensor {name!r} in {file} claims bytes {begin} to {end}, which does not match "
            f"{row['dtype']} {list(shape)}. The file is damaged."
        )
    return tensor


def _integers(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(type(number) is int for number in value):
        raise TypeError(f"{value!r} is not a list of integers")
    return tuple(value)


def _check_extent(
    file: Path, size: int, data_begins: int, tensors: Mapping[str, StoredTensor]
) -> None:
    """The tensors must fill the rest of the file without gap or overlap."""
    expected = data_begins
    for tensor in sorted(tensors.values(), key=lambda tensor: (tensor.offset, tensor.nbytes)):
        if tensor.offset != expected:
            raise WeightsError(
                f"tensor {tensor.name!r} in {file} begins at byte {tensor.offset}, but the one "
                f"before it ends at {expected}. The file is damaged."
            )
        expected += tensor.nbytes
    if size != expected:
        raise WeightsError(
            f"{file} has {size} bytes, but its header says {expected}: it was cut off or "
            "overwritten. Download or save it again."
        )


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
