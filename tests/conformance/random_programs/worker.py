"""Runs programs in a process of its own: `python -m tests.conformance.random_programs.worker`.

Reads pickled requests (source, arguments) from standard input and answers each on standard output
with a list of arrays, or with the text of an exception. What programs print goes to standard error.
"""

from __future__ import annotations

import os
import pickle
import sys
import warnings
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from tests.conformance.random_programs.laws import broken_law

_CHARACTERS = 600


def answer(source: str, arguments: list[np.ndarray]) -> list[np.ndarray] | str:
    """The results of `program` in `source`, or what it raised, or the law that it breaks. A third
    of programs may write to their arguments."""

    def run(program: Any) -> list[np.ndarray] | str:
        donated = range(len(arguments)) if len(source) % 3 == 0 else ()
        compiled = jax.jit(program, donate_argnums=tuple(donated)).lower(*arguments).compile()
        results = [np.asarray(each) for each in compiled(*arguments)]
        return broken_law(compiled) or results

    return answered(source, run)


def answered(source: str, run: Callable[[Any], list[np.ndarray] | str]) -> list[np.ndarray] | str:
    """What `run` makes of the `program` in `source`, or the text of an exception."""
    scope: dict[str, Any] = {}
    try:
        exec(compile(source, "<random program>", "exec"), scope)
        return run(scope["program"])
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:_CHARACTERS]


def serve(answer: Callable[..., object]) -> None:
    """Answers requests, tuples of arguments, until there are no more."""
    warnings.simplefilter("ignore")
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    while True:
        try:
            request = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        pickle.dump(answer(*request), replies)
        replies.flush()


if __name__ == "__main__":
    serve(answer)
