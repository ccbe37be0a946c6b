"""What --preset, --scale and --config mean for the other flags of a run."""

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from launch.errors import SettingsError
from launch.presets.recipe import TINY_CORES, Recipe
from launch.presets.table import RECIPES
from launch.run_file import RUN_FILE

HELP = "help"
FULL = "full"
SCALES = (FULL, *TINY_CORES)


@dataclass(frozen=True)
class Choice:
    """The starting point of a run.

    Attributes:
      settings: values of flags that hold unless the command line has others.
      model: the fields of a model's config.json; None: what --model or the flags say.
      environment: variables that give the platform `neuron` the cores that this is for.
      recipe: what was published.
    """

    settings: Mapping[str, Any]
    model: Mapping[str, Any] | None
    environment: Mapping[str, str] = field(default_factory=dict)
    recipe: Recipe | None = None

    @property
    def task(self) -> str | None:
        """The task of launch.finetune; None: --task says it."""
        return None if self.recipe is None else self.recipe.task


def choose(preset: str | None, scale: str, file: str | None, *, tunes: bool = False) -> Choice:
    """What the three flags ask for; `tunes` says that it is launch.finetune which has them.

    Raises SettingsError for names that there are not, presets of the other program, and files
    that cannot be used.
    """
    if preset is not None and file is not None:
        raise SettingsError(f"--preset={preset} and --config={file} exclude each other.")
    if file is not None:
        return _read(Path(file))
    if preset is None:
        if scale != FULL:
            raise SettingsError(f"--scale={scale} needs a --preset.")
        return Choice({}, None)
    if preset not in RECIPES:
        raise SettingsError(
            f"--preset={preset} is unknown.{_alike(preset)} --preset=help lists all "
            f"{len(RECIPES)} presets."
        )
    recipe = RECIPES[preset]
    if tunes != (recipe.task is not None):
        raise SettingsError(
            f"--preset={preset} trains on plain text. Use python -m launch.train --preset={preset}"
            if tunes
            else (
                f"--preset={preset} tunes a model for a task ({recipe.task}). Use python -m "
                f"launch.finetune --preset={preset} --model=DIR --data=FILE"
            )
        )
    if scale != FULL:
        recipe = recipe.tiny(scale)
    return Choice(recipe.settings(), recipe.model, recipe.environment(), recipe)


def _alike(name: str) -> str:
    names = difflib.get_close_matches(name, RECIPES)
    return f" Did you mean {' or '.join(names)}?" if names else ""


def _read(file: Path) -> Choice:
    try:
        content = json.loads(file.read_text())
        settings, model = content["settings"], content["model"]
        environment = content["environment"]
        if not isinstance(model, dict | None):
            raise TypeError("`model` must be an object")
        if not isinstance(settings, dict) or not isinstance(environment, dict):
            raise TypeError("`settings` and `environment` must be objects")
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise SettingsError(
            f"--config={file} cannot be used: {error}. Give the {RUN_FILE} of a run directory."
        ) from error
    return Choice(settings, model, environment)


def listing() -> str:
    """All presets as a table."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("preset", "cores", "tp/pp/cp", "batch", "length", "learning rate"):
        table.add_column(name, no_wrap=True)
    for name in ("precision; recomputes", "task", "differs"):
        table.add_column(name)
    for name, recipe in RECIPES.items():
        table.add_row(
            name,
            f"{recipe.instances} × {recipe.target}",
            f"{recipe.tensor}/{recipe.pipeline}/{recipe.context}",
            f"{recipe.global_batch:,}",
            f"{recipe.seq_len:,}",
            f"{recipe.learning_rate:g} {recipe.schedule} {recipe.warmup_steps}",
            f"{recipe.precision}; {recipe.recompute}",
            recipe.task or "",
            recipe.note,
        )
    console = Console(width=160, color_system=None)
    with console.capture() as capture:
        console.print(table)
    return "\n".join(line.rstrip() for line in capture.get().splitlines())
