"""The flags that start a run from a published one, or from the file of an earlier one."""

from collections.abc import Collection, MutableMapping
from typing import Any

from absl import flags

from launch.errors import SettingsError
from launch.presets.choice import FULL, SCALES, Choice, choose
from launch.training.parallelism import SIZES

flags.disclaim_key_flags()

CORES = ("NEURONJAX_TARGET", "NEURON_RT_NUM_CORES", "NEURON_RT_VISIBLE_CORES")
"""Variables that say which cores there are: where one is set, the user has decided."""


def _check_length(given: Collection[str]) -> None:
    """Raises SettingsError if both flags that say how long a run is are given."""
    if {"steps", "num_train_epochs"} <= set(given):
        raise SettingsError(
            "--steps and --num_train_epochs both set the length of the run. Leave one of them out."
        )


def define_preset_flags() -> None:
    """--preset, --scale and --config."""
    flags.DEFINE_string("preset", None, "Name of a published training recipe; help lists them.")
    flags.DEFINE_enum(
        "scale",
        FULL,
        SCALES,
        "Scale of the preset: as published, or a scaled-down version for 8 or 32 cores.",
    )
    flags.DEFINE_string("config", None, "The run.json of another run, to repeat it.")


def chosen(
    environment: MutableMapping[str, str], *, tunes: bool = False
) -> tuple[dict[str, Any], Choice]:
    """(values of all flags by name, what was chosen): what the command line says wins.

    Where nothing says which cores the platform `neuron` has, `environment`, which JAX has not read
    yet, is given those of the preset. Raises SettingsError as `choose` does.
    """
    values = flags.FLAGS.flag_values_dict()
    choice = choose(values["preset"], values["scale"], values["config"], tunes=tunes)
    given = {name for name in values if flags.FLAGS[name].present}
    _check_length(given)
    if "mesh" in given:  # says all sizes
        given |= SIZES
    if "steps" in given:  # says how long the run is
        given.add("num_train_epochs")
    values |= {name: value for name, value in choice.settings.items() if name not in given}
    if not any(name in environment for name in CORES):
        environment.update(choice.environment)
    return values, choice
