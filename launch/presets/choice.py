"""What --preset, --scale and --config mean for the other flags of a run."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
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
    """Values of flags that hold unless the command line has others, and the fields of a model's
    config.json; None: what --model or the flags say."""

    settings: Mapping[str, Any]
    model: Mapping[str, Any] | None
    recipe: Recipe | None = None


def choose(preset: str | None, scale: str, file: str | None) -> Choice:
    """What the three flags ask for.

    Raises SettingsError for names that there are not, and files that cannot be used.
    """
    if preset is not None and file is not None:
        raise SettingsError(f"--preset={preset} and --config={file} exclude each other.")
    if file is not None:
        return _read(Path(file))
    if preset is None:
        if scale != FULL:
            raise SettingsError(f"--scale={scale} is of a preset: give a --preset too.")
        return Choice({}, None)
    if preset not in RECIPES:
        raise SettingsError(
            f"--preset={preset} is not known; --preset=help lists the {len(RECIPES)} there are."
        )
    recipe = RECIPES[preset]
    if recipe.task is not None:
        given = " ".join(f"--{name}={value}" for name, value in recipe.settings().items())
        raise SettingsError(
            f"--preset={preset} tunes a model that is there: python -m launch.finetune "
            f"--task={recipe.task} --model=DIR --data=FILE {given}"
        )
    if scale != FULL:
        recipe = recipe.tiny(scale)
    return Choice(recipe.settings(), recipe.model, recipe)


def _read(file: Path) -> Choice:
    try:
        content = json.loads(file.read_text())
        settings, model = content["settings"], content["model"]
        if not isinstance(settings, dict) or not isinstance(model, dict | None):
            raise TypeError("`settings` and `model` must be objects")
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise SettingsError(
            f"--config={file} cannot be used: {error}. Give the {RUN_FILE} of a run directory."
        ) from error
    return Choice(settings, model)


def listing() -> str:
    """All presets as a table."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("preset", "cores", "tp/pp/cp", "batch", "length", "learning rate"):
        table.add_column(name, no_wrap=True)
    for name in ("precision; recomputes", "differs"):
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
            recipe.note,
        )
    console = Console(width=160, color_system=None)
    with console.capture() as capture:
        console.print(table)
    return "\n".join(line.rstrip() for line in capture.get().splitlines())
