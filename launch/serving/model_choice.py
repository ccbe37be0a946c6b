"""Which model is to be served, and how."""

from dataclasses import dataclass
from pathlib import Path

from absl import flags

from launch.serving.config import EngineConfig, ModelNames
from launch.settings import define_flags, from_flags

flags.disclaim_key_flags()


@dataclass(frozen=True)
class ModelChoice:
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


def define_model_flags() -> None:
    """The flags that say which model is to be served, and how."""
    flags.DEFINE_string("checkpoint_dir", "runs/main", "Directory of the run.")
    flags.DEFINE_string(
        "model", None, "Hugging Face directory, instead of the checkpoint of a run."
    )
    flags.DEFINE_string("mesh", "model=1", "Device mesh; model=4 splits every layer in four.")
    define_flags(EngineConfig())
    define_flags(ModelNames())


def model_choice_of_flags() -> ModelChoice:
    """What the flags of `define_model_flags` say."""
    values = flags.FLAGS.flag_values_dict()
    return ModelChoice(
        checkpoint_dir=Path(values["checkpoint_dir"]),
        model=None if values["model"] is None else Path(values["model"]),
        mesh=values["mesh"],
        engine=from_flags(EngineConfig, values),
        names=from_flags(ModelNames, values),
    )
