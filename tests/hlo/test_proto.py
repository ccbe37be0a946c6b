"""Wire format of device assignments, against jaxlib's own writer."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from jax._src.lib import xla_client

from neuronjax.hlo import proto

TABLES = arrays.arrays(
    np.int64,
    st.tuples(st.integers(1, 9), st.integers(1, 9)),
    elements=st.integers(0, 2**31 - 1),
    unique=True,
)


def jaxlib_bytes(table: np.ndarray) -> bytes:
    return xla_client.DeviceAssignment.create(table).serialize()


@given(TABLES)
def test_reads_what_jaxlib_writes(table: np.ndarray) -> None:
    np.testing.assert_array_equal(proto.read_device_assignment(jaxlib_bytes(table)), table)


@given(TABLES)
def test_writes_what_jaxlib_writes(table: np.ndarray) -> None:
    assert proto.write_device_assignment(table) == jaxlib_bytes(table)


def test_device_assignment_of_many_cores() -> None:
    table = np.arange(2048).reshape(2, 1024)
    assert proto.write_device_assignment(table) == jaxlib_bytes(table)
    np.testing.assert_array_equal(proto.read_device_assignment(jaxlib_bytes(table)), table)


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (0, b"\x00"),
        (1, b"\x01"),
        (127, b"\x7f"),
        (128, b"\x80\x01"),
        (150, b"\x96\x01"),
        (300, b"\xac\x02"),
        (2**64 - 1, b"\xff" * 9 + b"\x01"),
    ],
)
def test_varint(value: int, encoded: bytes) -> None:
    assert proto.write_varint(value) == encoded
    assert proto.read_varint(b"\x55" + encoded + b"\x55", 1) == (value, 1 + len(encoded))


def test_fields_of_a_nested_message() -> None:
    message = b"\x08\x96\x01" + b"\x12\x03abc" + b"\x1a\x02\x08\x07"
    assert list(proto.fields(message)) == [(1, 150), (2, b"abc"), (3, b"\x08\x07")]
