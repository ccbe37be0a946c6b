"""Texts of XLA's errors that decide what its caller does."""

from __future__ import annotations

import re

_NO_IMPLEMENTATION = re.compile(
    r"No (?:FFI handler registered for|registered implementation for \w+ custom call to) (\S+) "
)


def unknown_custom_call(text: str) -> str | None:
    """The target of the custom call that XLA has no code for, if that is what the text says."""
    match = _NO_IMPLEMENTATION.search(text)
    return match[1] if match else None


def is_unimplemented(text: str) -> bool:
    """Whether an error has the status UNIMPLEMENTED: XLA knows the program, but lacks code."""
    return text.startswith("UNIMPLEMENTED")
