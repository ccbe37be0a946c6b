"""Rows of key tables for the layers that most families have."""

from collections.abc import Iterator

from models.weights.table import Row, row
from models.weights.transforms import KERNEL, SAME, Transform


def dense_rows(
    key: str, parameter: str, kernel: Transform = KERNEL, bias: Transform = SAME
) -> Iterator[Row]:
    """A linear layer."""
    yield row(f"{key}.weight", f"{parameter}.kernel", kernel)
    yield row(f"{key}.bias", f"{parameter}.bias", bias)


def norm_rows(key: str, parameter: str) -> Iterator[Row]:
    """A LayerNorm."""
    yield row(f"{key}.weight", f"{parameter}.scale")
    yield row(f"{key}.bias", f"{parameter}.bias")
