"""A question that the planner answers: a model, a global batch, a length and machines."""

import difflib
import functools
from dataclasses import dataclass
from pathlib import Path

from launch.config import TrainConfig
from launch.emulation import cores_of
from launch.errors import ModelError, SettingsError
from launch.model_workloads import layer_depths
from launch.presets.choice import FULL, choose
from launch.presets.recipe import Recipe
from launch.presets.table import RECIPES
from launch.settings import from_flags
from launch.source import from_fields, from_path
from launch.training.optimizers import OptimizerSettings
from launch.training.parallelism import Parallelism
from launch.training.precision import PRECISIONS, PrecisionSettings
from models.errors import ModelsError
from models.pretrained import Described

PRECISION = "mixed_precision"
"""The recipe where nobody names one: that of Neuron's published trainings."""
OPTIMIZER = "adamw"


@dataclass(frozen=True, kw_only=True)
class Question:
    """A training run on so many machines of a kind.

    Attributes:
      model: a preset of launch.train, or what its --model takes.
      batch: sequences of a step over all cores, of `length` tokens each.
      precisions: recipes of --precision to choose from.
    """

    model: str
    target: str
    machines: int
    batch: int
    length: int
    precisions: tuple[str, ...] = (PRECISION,)

    @property
    def cores(self) -> int:
        """Cores of all machines, as programs see them."""
        return self.machines * cores_of(self.target)

    @property
    def recipe(self) -> Recipe | None:
        """The preset, if the model is one."""
        return RECIPES.get(self.model)

    def config(self, parallelism: Parallelism, precision: str, batch: int) -> TrainConfig:
        """The run of launch.train with these settings; all others are the preset's."""
        given = {"optimizer": OPTIMIZER} if self.recipe is None else self.recipe.settings()
        return TrainConfig(
            checkpoint_dir=Path("runs/decoder"),
            seq_len=self.length,
            batch_size=batch,
            optimizer=from_flags(OptimizerSettings, given),
            precision=PrecisionSettings(precision=precision),
            parallelism=parallelism,
        )


def ask(
    model: str,
    *,
    target: str | None,
    machines: int | None,
    batch: int | None,
    length: int | None,
    precisions: str | None,
) -> Question:
    """The question with what the preset says in place of None.

    Raises LaunchError or ConfigError for what is unknown or missing.
    """
    recipe = RECIPES.get(model)
    described = described_by(model)
    if recipe is None and batch is None:
        raise SettingsError(f"--batch: say how many sequences a step of {model} has.")
    names = tuple(precisions.split(",")) if precisions else ()
    if unknown := sorted({*names} - PRECISIONS.keys()):
        raise SettingsError(
            f"--precision={precisions}: there is no {', '.join(unknown)}; choose from "
            f"{', '.join(PRECISIONS)}."
        )
    if layer_depths(described.config) is None:
        raise ModelError(
            f"the layers of {model} differ from each other without a rule, so no layer stands for "
            "the others. Estimate plans one by one: python -m launch.train --estimate."
        )
    longest = described.config.max_seq_len
    length = length or (longest if recipe is None else recipe.seq_len)
    if length > longest:
        raise SettingsError(f"--length={length} is beyond the model's context of {longest} tokens.")
    question = Question(
        model=model,
        target=target or ("trn1.32xlarge" if recipe is None else recipe.target),
        machines=machines or (1 if recipe is None else recipe.instances),
        batch=batch or (0 if recipe is None else recipe.global_batch),
        length=length,
        precisions=names or ((PRECISION,) if recipe is None else (recipe.precision,)),
    )
    cores_of(question.target)  # raises for a machine that there is not
    return question


@functools.cache
def described_by(model: str) -> Described:
    """The decoder that a name stands for: a preset's, or that of --model of launch.train.

    Raises ModelError or ConfigError if there is none.
    """
    if model in RECIPES:
        recipe = RECIPES[model]
        if recipe.task is not None:
            raise ModelError(
                f"the preset {model} tunes a model for {recipe.task}; plans are for training on "
                f"plain text. The presets of launch.train: {', '.join(_on_text())}."
            )
        return from_fields(choose(model, FULL, None).model or {}, f"--preset={model}").model
    try:
        return from_path(Path(model)).model
    except ModelsError as error:
        if Path(model).exists():
            raise
        alike = difflib.get_close_matches(model, RECIPES)
        hint = f" Did you mean {' or '.join(alike)}?" if alike else ""
        raise ModelError(
            f"{model} is no preset, no published name, and no directory or config.json.{hint} "
            "The presets are listed by python -m launch.train --preset=help. Functions of JAX and "
            "modules of PyTorch are swept by neuronjax sweep: launch.train does not train them."
        ) from error


def _on_text() -> list[str]:
    return [name for name, recipe in RECIPES.items() if recipe.task is None]
