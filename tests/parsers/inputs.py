"""Wrong input: what is right, with damage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

NASTY = (
    "", " ", "\0", "\n", "-1", "0", "1", "7", "0.5", "1e400", "nan", "inf", "-inf", "9" * 5000,
    "99999999999", "1" + "0" * 25, "²", "٣", "é", "\udc80", "true", "null", "x" * 100, "=", ",",
    "-", "--", "'", '"', "{", "}", "[", "]", "(", ")", "<", ">", ":", "%", "$", "#", "@", "!", "*",
)  # fmt: skip
"""Pieces at which parsers stumble: numbers that are none, marks, characters outside of Unicode."""

NESTED = tuple(mark * 20_000 for mark in ("[", "{", "(", '{"a":', "[[", "a.", "- ", "<"))
"""Nested deeper than a recursive parser can go."""

anything = st.text(st.characters(), max_size=60) | st.sampled_from((*NASTY, *NESTED))


@st.composite
def damaged(draw: st.DrawFn, samples: Sequence[str]) -> str:
    """A right text with up to four places cut out, doubled, or replaced by something nasty."""
    text = draw(st.sampled_from(samples))
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(text)))
        end = min(len(text), start + draw(st.integers(0, 12)))
        piece = draw(st.sampled_from((*NASTY, text[start:end] * 2)) | st.text(max_size=3))
        text = text[:start] + piece + text[end:]
    return text


def texts(*samples: str) -> st.SearchStrategy[str]:
    """Anything, and damaged samples."""
    return damaged(samples) | anything


def contents(*samples: str) -> st.SearchStrategy[bytes]:
    """Bytes of files: damaged texts, which need not be UTF-8, and bytes of any kind."""
    encoded = texts(*samples).map(lambda text: text.encode("utf-8", "surrogatepass"))
    return encoded | st.binary(max_size=60)


scalars = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(NASTY)
    | st.sampled_from((10**30, -1, 0, 1, 2, 7, 0.5))
)  # fmt: skip
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NASTY), inner),
    max_leaves=6,
)
"""What JSON or TOML can hold."""


@st.composite
def altered(draw: st.DrawFn, document: Any) -> Any:
    """A document with up to three of its values replaced or taken out."""
    for _ in range(draw(st.integers(1, 3))):
        document = _altered(draw, document)
    return document


def _altered(draw: st.DrawFn, document: Any) -> Any:
    if not isinstance(document, dict | list) or not document or draw(st.integers(0, 4)) == 0:
        return draw(values)
    keys = list(document) if isinstance(document, dict) else list(range(len(document)))
    key = draw(st.sampled_from(keys))
    copy = dict(document) if isinstance(document, dict) else list(document)
    if draw(st.integers(0, 5)) == 0:
        del copy[key]
    else:
        copy[key] = _altered(draw, document[key])
    return copy
