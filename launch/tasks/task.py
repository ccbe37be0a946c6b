"""The interface of a task."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from models.weights.generation import Generation


@dataclass(frozen=True)
class Request:
    """The user's request.

    Attributes:
      directory: of the checkpoint.
      input: the text, or the path of the file, that the task works on.
      mesh: as `--mesh`; None = fitted to the devices.
      dtype: of weights and activations; None = that of the checkpoint.
      scan_layers: whether the model's blocks run as one loop.
      generation, seed: for tasks that generate text; the seed also for images.
      given: the user's generation settings, by the names of generation_config.json; they override
        the checkpoint's, which override `generation`.
      steps: number of denoising steps; None = the model's default.
      guidance: how closely an image follows its prompt; None = the model's default.
      loras: LoRA files for a pipeline, each optionally followed by `:SCALE`.
      controlnet: directory of a ControlNet; None = the pipeline's own, if it has one.
      control: the conditioning image; control_scale: the ControlNet's conditioning scale.
      ip_adapter: file of an IP-Adapter; image_prompt: the image that it adds to the prompt;
        image_prompt_scale: how much that counts.
      task: the name of the task, which decides the model's head; None = that of the checkpoint.
      strength: how much of an image to change, up to 1; None = the model's default.
    """

    directory: Path
    input: str
    mesh: str | None
    dtype: str | None
    generation: Generation
    seed: int
    scan_layers: bool = False
    steps: int | None = None
    guidance: float | None = None
    strength: float | None = None
    loras: Sequence[str] = ()
    controlnet: Path | None = None
    control: Path | None = None
    control_scale: float = 1.0
    ip_adapter: Path | None = None
    image_prompt: Path | None = None
    image_prompt_scale: float = 1.0
    given: Mapping[str, Any] = field(default_factory=dict)
    task: str | None = None

    @property
    def tasks(self) -> tuple[str, ...]:
        """The task as `models.pretrained.describe` takes it."""
        return () if self.task is None else (self.task,)


@dataclass(frozen=True)
class Task:
    """A task: `run` carries it out and writes the result to standard output."""

    name: str  # as in Architecture.task
    input: str  # what --input is, for help and messages
    run: Callable[[Request], None]
