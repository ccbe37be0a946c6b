"""The form of a task."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from models.sampling import Sampling


@dataclass(frozen=True)
class Request:
    """What the user asks for.

    Attributes:
      directory: of the checkpoint.
      input: the text, or the path of the file, that the task works on.
      mesh: as `--mesh`; None = fitted to the devices.
      dtype: of weights and activations; None = that of the checkpoint.
      max_new_tokens, sampling, seed: of tasks that make text; the seed also of images.
      steps: in which noise becomes an image.
      guidance: how far an image follows its prompt; None = the model's default.
    """

    directory: Path
    input: str
    mesh: str | None
    dtype: str | None
    max_new_tokens: int
    sampling: Sampling
    seed: int
    steps: int = 50
    guidance: float | None = None


@dataclass(frozen=True)
class Task:
    """One task: `run` does it and writes the result to standard output."""

    name: str  # as in Architecture.task
    input: str  # what --input is, for help and messages
    run: Callable[[Request], None]
