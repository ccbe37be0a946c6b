"""One row of the parity table."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

DOUBLED = (
    "XLA's partitioner doubles gradients of depthwise kernels (jaxlib 0.10, on cpu too) where rows "
    "are split over one axis of two"
)


@dataclass(frozen=True)
class Case:
    """One comparison.

    Attributes:
      architecture: the class of transformers (or diffusers), a key of the registry.
      variant: what the config makes special; empty for the plain model.
      config: fields of the architecture's config class.
      length: of the texts, in tokens.
      untied: the head gets a table of its own, which the config does not tell.
      unsharded_only: no mesh: a reason why it cannot be split in two.
    """

    architecture: str
    variant: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)
    length: int = 12
    untied: bool = False
    unsharded_only: str = ""

    @property
    def name(self) -> str:
        return f"{self.architecture} {self.variant}".strip()
