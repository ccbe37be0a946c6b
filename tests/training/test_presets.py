"""Presets: their flags, their twins, their run files, and what is refused."""

import dataclasses
import math
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from launch.config import TrainConfig
from launch.errors import LaunchError
from launch.finetuning.settings import TuningSettings
from launch.finetuning.tasks import TASKS
from launch.presets.choice import FULL, choose, listing
from launch.presets.recipe import TINY_CORES
from launch.presets.table import RECIPES
from launch.run_file import RUN_FILE, write_run_file
from launch.run_flags import setting_names
from launch.settings import names_of
from launch.source import from_fields
from launch.training.parallelism import Parallelism
from tests.launch.programs import ROOT, environment
from tests.training import presets

# As the publishers list them: cores, tp/pp/cp, sequences of a step; steps, weight decay, Adam's
# second beta, and the learning rate at the end.
PUBLISHED = {
    "hf_llama_7B": (32, (8, 1, 1), 1024, 10_000, 0.01, 0.999, 0),
    "hf_llama3_8B": (128, (32, 1, 1), 1024, 10_000, 0.01, 0.999, 0),
    "hf_llama3_8B_trn2": (64, (16, 1, 1), 1024, 10_000, 0.01, 0.999, 0),
    "hf_llama3.1_8B": (1024, (32, 1, 1), 1024, 30_000, 0.1, 0.95, 1e-6),
    "hf_llama3_70B": (512, (32, 8, 1), 1024, 30_000, 0.1, 0.95, 1e-6),
    "hf_llama3.1_70B": (1024, (32, 8, 1), 1024, 30_000, 0.1, 0.95, 1e-6),
    "hf_llama3_70B_CP": (512, (32, 8, 2), 1024, 30_000, 0.1, 0.95, 1e-6),
    "hf_llama3_70B_trn2": (512, (32, 4, 1), 1024, 10_000, 0.1, 0.95, 1e-6),
    "hf_llama3_405B": (2048, (64, 8, 1), 1024, 30_000, 0.1, 0.95, 1e-6),
    "hf_llama3.1_405B_trn1": (2048, (32, 32, 1), 256, 30_000, 0.1, 0.95, 1e-6),
    "hf_mistral_7B_SFT": (32, (32, 1, 1), 64, 5000, 0.01, 0.999, 0),
    "hf_llama3_8B_SFT": (32, (32, 1, 1), 64, 5000, 0.01, 0.999, 0),
    "hf_llama3_8B_SFT_lora": (32, (32, 1, 1), 64, 5000, 0.01, 0.999, 0),
    "hf_llama3_8B_DPO": (32, (32, 1, 1), 4, 5000, 0.01, 0.999, 0),
    "hf_llama3_8B_ORPO": (32, (32, 1, 1), 16, 5000, 0.01, 0.999, 0),
    "hf_mixtral_8x7b": (256, (32, 4, 1), 128, 22_500, 0.1, 0.95, 3e-5),
    "hf_mixtral_8x7b_dropless": (256, (32, 4, 1), 128, 22_500, 0.1, 0.95, 3e-5),
    "megatron_mixtral_8x7b": (512, (32, 4, 1), 128, 22_500, 0.1, 0.95, 3e-5),
    "megatron_mixtral_8x7b_dropless": (512, (32, 4, 1), 128, 22_500, 0.1, 0.95, 3e-5),
    "megatron_gpt": (32, (8, 1, 1), 1024, 20_000, 0.01, 0.95, 1e-5),
    "megatron_llama_7B": (32, (8, 1, 1), 1024, 20_000, 0.1, 0.95, 3e-5),
    "megatron_mistral": (32, (8, 1, 1), 1024, 20_000, 0.1, 0.95, 3e-5),
    "megatron_llama2_7B_SFT": (32, (8, 1, 1), 64, 5000, 0.1, 0.95, 3e-5),
    "megatron_llama_70b": (256, (8, 16, 1), 512, 20_000, 0.1, 0.95, 3e-5),
}
TUNED = [name for name, recipe in RECIPES.items() if recipe.task is not None]
TEXTS = [name for name, recipe in RECIPES.items() if recipe.task is None]


@pytest.mark.parametrize("name", PUBLISHED)
def test_numbers_are_the_published_ones(name: str) -> None:
    recipe = RECIPES[name]
    cores, sizes, rows, steps, decay, beta2, final = PUBLISHED[name]
    settings = recipe.settings()
    assert (recipe.cores, (recipe.tensor, recipe.pipeline, recipe.context)) == (cores, sizes)
    assert (settings["batch_size"], settings["steps"]) == (rows, steps)
    assert (settings["weight_decay"], settings["adam_beta2"]) == (decay, beta2)
    assert settings["final_learning_rate"] * settings["learning_rate"] == pytest.approx(final)


@pytest.mark.parametrize("name", [name for name in RECIPES if "mixtral" in name])
def test_tokens_are_dropped_but_in_the_presets_that_say_otherwise(name: str) -> None:
    factor = None if name.endswith("dropless") else 2.0
    assert RECIPES[name].settings().get("expert_capacity_factor") == factor
    assert RECIPES[name].settings()["router_aux_loss_coef"] == 0.02


@pytest.mark.parametrize("name", TUNED)
def test_every_setting_of_tuning_is_a_flag(name: str) -> None:
    choice = choose(name, FULL, None, tunes=True)
    flags = setting_names(TrainConfig(checkpoint_dir=Path())) | {*names_of(TuningSettings)}
    assert choice.settings.keys() <= flags
    assert choice.task in TASKS


@pytest.mark.parametrize("scale", [FULL, *TINY_CORES])
@pytest.mark.parametrize("name", TEXTS)
def test_every_setting_is_a_flag_and_sizes_fit(name: str, scale: str) -> None:
    choice = choose(name, scale, None)
    assert choice.settings.keys() <= setting_names(TrainConfig(checkpoint_dir=Path()))
    assert choice.model is not None
    assert choice.recipe is not None
    config = from_fields(choice.model, name).model.config
    names = {entry.name for entry in dataclasses.fields(Parallelism)}
    parallelism = Parallelism(**{k: v for k, v in choice.settings.items() if k in names})
    fitted = parallelism.on(None, choice.recipe.cores, config, choice.recipe.global_batch)
    assert math.prod(fitted.axes.values()) == choice.recipe.cores
    assert fitted.data_parallel_size is not None
    micro = fitted.pipeline_parallel_num_microbatches or 1
    rows = fitted.data_parallel_size * fitted.gradient_accumulation_steps * micro
    assert choice.settings["batch_size"] == rows


@pytest.mark.parametrize("name", RECIPES)
def test_twins_have_the_kinds_of_parallelism(name: str) -> None:
    for scale, cores in TINY_CORES.items():
        recipe, twin = RECIPES[name], RECIPES[name].tiny(scale)
        assert twin.cores == cores
        for kind in ("tensor", "pipeline", "context"):
            assert (getattr(recipe, kind) > 1) == (getattr(twin, kind) > 1)
        shares = [each.tensor > each.model["num_key_value_heads"] for each in (recipe, twin)]
        assert shares[0] == shares[1]


def test_the_list_has_every_preset() -> None:
    assert all(name in listing() for name in RECIPES)


def test_a_run_file_gives_the_same_choice(tmp_path: Path) -> None:
    choice = choose("hf_llama_7B", "tiny", None)
    write_run_file(tmp_path, choice.settings, choice.model, choice.environment)
    again = choose(None, FULL, str(tmp_path / RUN_FILE))
    assert again == replace(choice, recipe=None)
    assert again.environment == {"NEURONJAX_TARGET": "trn1.32xlarge", "NEURON_RT_NUM_CORES": "8"}


@pytest.mark.parametrize(
    ("preset", "scale", "file", "message"),
    [
        ("none", FULL, None, r"--preset=none is unknown\. --preset=help lists"),
        ("hf_llama3_70B_trn", FULL, None, r"is unknown\. Did you mean hf_llama3_70B_trn2 or "),
        (None, "tiny", None, "--scale=tiny needs a --preset"),
        ("hf_llama_7B", FULL, "run.json", "exclude each other"),
        (None, FULL, "/dev/null", "--config=/dev/null cannot be used: .* Give the run.json"),
        ("hf_llama3_8B_DPO", FULL, None, "launch.finetune --preset=hf_llama3_8B_DPO --model=DIR"),
    ],
)
def test_refusals(preset: str | None, scale: str, file: str | None, message: str) -> None:
    with pytest.raises(LaunchError, match=message):
        choose(preset, scale, file)


def test_presets_of_text_are_not_for_tuning() -> None:
    with pytest.raises(
        LaunchError, match=r"on plain text\. Use python -m launch\.train --preset=hf_ll"
    ):
        choose("hf_llama_7B", FULL, None, tunes=True)


@pytest.mark.parametrize(
    "name", ["megatron_gpt", pytest.param("hf_llama3_8B_DPO", marks=pytest.mark.slow)]
)
def test_estimates_run_nothing(name: str, tmp_path: Path) -> None:
    directory = tmp_path / "run"
    arguments = [*presets.command(name, "tiny", directory), "--estimate", "--price=20"]
    variables = {**os.environ, "JAX_PLATFORMS": "neuron"}
    done = subprocess.run(
        arguments, cwd=ROOT, env=variables, text=True, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
    for line in ("step time", "HBM of a core", "Sent by a core, by mesh axis", "a step "):
        assert line in done.stdout, done.stdout
    assert not directory.exists()


@pytest.mark.slow
def test_a_twin_trains_resumes_and_goes_on_elsewhere(tmp_path: Path) -> None:
    outcome = presets.check("hf_llama3_8B_SFT", "tiny", tmp_path, environment(devices=8))
    assert not outcome.failure, outcome.failure
