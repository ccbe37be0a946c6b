"""How a process ends whose platform could not start: with the reason in one line.

JAX passes the error on from between its own frames. Whoever catches it sees no difference; an
uncaught one ends the process without a traceback, which would say nothing about a wrong variable.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import TracebackType

import jax

from neuronjax.errors import ConfigurationError
from neuronjax.pjrt.guard import stated


def end_with_reason(error: BaseException) -> None:
    """Replaces the traceback of ``error``, and of what JAX raises because of it, by one line, if
    the user can do something about it and the program has no hook of its own."""
    reason = _reason(error)
    if reason is None or sys.excepthook is not sys.__excepthook__:
        return

    def tell(
        kind: type[BaseException], raised: BaseException, traceback: TracebackType | None
    ) -> None:
        if error in _causes(raised):
            print(f"neuronjax: {reason}", file=sys.stderr)
        else:
            sys.__excepthook__(kind, raised, traceback)

    sys.excepthook = tell


def _reason(error: BaseException) -> str | None:
    """What is wrong with the configuration; ``None`` for any other error, which has a traceback."""
    if isinstance(error, ConfigurationError):
        return str(error)
    status, text = stated(str(error)) or ("INTERNAL", "")
    is_ours = isinstance(error, jax.errors.JaxRuntimeError) and status != "INTERNAL"
    return text if is_ours else None


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
