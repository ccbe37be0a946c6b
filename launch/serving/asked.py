"""Which model is to be served, and how."""

from dataclasses import dataclass
from pathlib import Path

from launch.serving.config import EngineConfig, ModelNames


@dataclass(frozen=True)
class Asked:
    """What the command line says of the model."""

    checkpoint_dir: Path  # of a run
    model: Path | None  # Hugging Face directory, instead of it
    mesh: str  # as --mesh
    engine: EngineConfig
    names: ModelNames

    @property
    def files(self) -> Path:
        """The directory of the model."""
        return self.checkpoint_dir if self.model is None else self.model

    @property
    def name(self) -> str:
        """What clients call the model."""
        return self.names.served_model_name or self.files.absolute().name
