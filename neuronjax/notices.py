"""Warnings that cannot make a program fail.

Programs are compiled inside calls of the user's code. If a filter turns warnings into errors, as in
many test suites, compilations would fail, and jaxlib would report an internal error.
"""

from __future__ import annotations

import contextlib
import warnings


def warned(message: str, category: type[Warning], file: str, line: int) -> bool:
    """Gives a warning about a line of ``file`` to Python's filters, however often it was given.

    Returns whether it went where the filters say (maybe nowhere). False: a filter, or a hook that
    shows warnings, raised an error; the caller should log what it had to say.
    """
    with contextlib.suppress(Exception):
        warnings.warn_explicit(message, category, file, line)
        return True
    return False
