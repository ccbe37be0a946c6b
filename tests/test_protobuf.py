"""Wire format of protocol buffers, against examples of its specification."""

import pytest

from neuronjax import protobuf


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
    assert protobuf.write_varint(value) == encoded
    assert protobuf.read_varint(b"\x55" + encoded + b"\x55", 1) == (value, 1 + len(encoded))


def test_fields_of_a_nested_message() -> None:
    message = b"\x08\x96\x01" + b"\x12\x03abc" + b"\x1a\x02\x08\x07"
    assert list(protobuf.fields(message)) == [(1, 150), (2, b"abc"), (3, b"\x08\x07")]
