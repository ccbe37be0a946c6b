"""A file of NKI 0.x in the present dialect, and whether its kernel is still the same."""

from __future__ import annotations

import ast
import copy
import functools
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from neuronjax.display import duration
from neuronjax.errors import ConfigurationError, NeuronError
from neuronjax.nki.gym.evaluation import Evaluation, evaluate
from neuronjax.nki.kernel import Kernel, simulate
from neuronjax.nki.migration.rewriting import Remark, Rewriting
from neuronjax.nki.migration.watching import watched

_ERROR = 1e-5
"""Differences of results that the order of sums explains, of the greatest."""


@dataclass(frozen=True)
class Migration:
    """A file in the present dialect, and what to know of it."""

    text: str
    #: What was not translated.
    remarks: tuple[Remark, ...]
    #: Why the new kernel does not run; "" if it does.
    failure: str
    #: The greatest difference of results, of the greatest of these.
    difference: float
    #: Both kernels without values.
    before: Evaluation | None
    after: Evaluation | None

    @property
    def is_same(self) -> bool:
        """Whether all is translated, and values agree."""
        return not self.remarks and not self.failure and self.difference <= _ERROR

    def report(self, file: str) -> str:
        """What was not translated, and how the kernels differ."""
        lines = [
            f"{file}:{', '.join(str(remark.line) for remark in same)}: not translated: {text}"
            for text, same in itertools.groupby(self.remarks, lambda remark: remark.text)
        ]
        if self.failure:
            return "\n".join([*lines, f"the new kernel does not run: {self.failure}"])
        lines.append(
            "values are the same" if not self.difference
            else f"values differ by {self.difference:.2g} of the greatest"
        )  # fmt: skip
        if self.before is None or self.after is None:
            return "\n".join(lines)
        before, after = self.before.instructions, self.after.instructions
        names = sorted(name for name in {*before, *after} if before.get(name) != after.get(name))
        changes = [f"{name} {before.get(name, 0)} -> {after.get(name, 0)}" for name in names]
        lines.append(
            f"instructions differ: {', '.join(changes)}" if changes else "instructions are the same"
        )
        times = (duration(self.before.device_ns), duration(self.after.device_ns))
        return "\n".join([*lines, f"time on the device: {times[0]} -> {times[1]}"])


def migrate(
    file: Path,
    name: str,
    arguments: Sequence[Any],
    values: Mapping[str, Any],
    target: str | None = None,
) -> Migration:
    """The file in the present dialect as far as its kernel `name` runs through it; it is run with
    arguments before and after.

    Raises:
      ConfigurationError: the file does not import neuronxcc.
      NeuronError: its own kernel is refused.
    """
    source = file.read_text()
    if "neuronxcc" not in source:
        raise ConfigurationError(f"{file} does not import neuronxcc; it is no kernel of NKI 0.x.")
    given = [
        np.broadcast_to(np.zeros((), value.dtype), value.shape)
        if isinstance(value, np.ndarray)
        else value
        for value in arguments
    ]
    before, watch = watched(source, str(file), name, given, values, target)
    rewriting = Rewriting(source, watch)
    text = rewriting.text()
    failure, difference = "", np.inf
    evaluations: list[Evaluation | None] = [None, None]
    try:
        module: dict[str, Any] = {"__name__": "migrated_kernel", "__file__": str(file)}
        exec(compile(ast.parse(text), f"{file} (migrated)", "exec"), module)
        kernels: tuple[Kernel[Any], ...] = (before, module[name])
        results = [
            jax.tree.leaves(simulate(kernel, target=target)(*copy.deepcopy(arguments), **values))
            for kernel in kernels
        ]
        difference = max(_difference(*pair) for pair in zip(*results, strict=True))
        evaluations = [
            evaluate(functools.partial(kernel, **values), None, given, target=target)
            for kernel in kernels
        ]
    except NeuronError as error:
        failure = str(error)
    except Exception as error:
        failure = f"{type(error).__name__}: {error}"
    return Migration(text, tuple(rewriting.remarks), failure, difference, *evaluations)


def _difference(before: np.ndarray, after: np.ndarray) -> float:
    if before.tobytes() == after.tobytes():
        return 0.0
    wide = before.astype(np.float64)
    return float(np.abs(wide - after.astype(np.float64)).max() / np.abs(wide).max())
