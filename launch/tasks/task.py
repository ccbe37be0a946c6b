"""The form of a task."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from models.weights.generation import Generation


@dataclass(frozen=True)
class Request:
    """What the user asks for.

    Attributes:
      directory: of the checkpoint.
      input: the text, or the path of the file, that the task works on.
      mesh: as `--mesh`; None = fitted to the devices.
      dtype: of weights and activations; None = that of the checkpoint.
      generation, seed: of tasks that make text; the seed also of images.
      given: what the user says of generation, by the names of generation_config.json; it wins over
        the checkpoint, and that over `generation`.
      steps: in which noise becomes an image; None = as many as the model usually takes.
      guidance: how far an image follows its prompt; None = the model's default.
      loras: files of LoRA for a pipeline, each with `:SCALE` behind it or not.
      controlnet: directory of a ControlNet; control: the image that it sees, or the pipeline's own
        does; control_scale: of what it adds.
      strength: how much of an image is made anew, up to 1; None = the model's default.
    """

    directory: Path
    input: str
    mesh: str | None
    dtype: str | None
    generation: Generation
    seed: int
    steps: int | None = None
    guidance: float | None = None
    strength: float | None = None
    loras: Sequence[str] = ()
    controlnet: Path | None = None
    control: Path | None = None
    control_scale: float = 1.0
    given: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Task:
    """One task: `run` does it and writes the result to standard output."""

    name: str  # as in Architecture.task
    input: str  # what --input is, for help and messages
    run: Callable[[Request], None]
