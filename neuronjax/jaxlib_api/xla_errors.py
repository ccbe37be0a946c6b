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


_OF_CALLBACK = re.compile(
    r"CpuCallback error calling callback: Traceback .*\n(?:[\w.]+\.)?(\w+): (.*)\Z", re.DOTALL
)


def raised_in_callback(text: str) -> tuple[str, str] | None:
    """Class and message of the Python exception that ended a host callback, if one did."""
    match = _OF_CALLBACK.search(text)
    return (match[1], match[2].strip()) if match else None
