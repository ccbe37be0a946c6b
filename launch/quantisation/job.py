"""Quantises a model's files into others."""

from itertools import islice
from pathlib import Path

import numpy as np

from launch.data.batches import held_out_batches, make_batches
from launch.data.config import DataConfig
from launch.data.text_data import open_text
from launch.emulation import lacks_microscaling
from launch.errors import CheckpointError, DataError, SettingsError
from launch.generator import load_directory, load_run
from launch.program import say
from launch.quantisation.calibration import observe
from launch.quantisation.quantise import as_reference, choose, kernels, quantise
from launch.quantisation.report import Accuracy, measure
from launch.quantisation.settings import QuantisationSettings
from launch.text import copy_companions
from models import pretrained

BATCH = 8  # rows at once
REPORT = "quantisation.json"


def quantise_directory(
    model: Path | None,
    checkpoint_dir: Path,
    out: Path,
    settings: QuantisationSettings,
    data_config: DataConfig,
    *,
    dtype: str,
    mesh: str,
) -> Accuracy:
    """Writes the quantised model and the report into `out`.

    Raises LaunchError or ModelsError for what cannot be read, quantised or written; nothing is
    overwritten.
    """
    storage = settings.storage
    if storage.exponents and (target := lacks_microscaling()):
        raise SettingsError(
            f"--weights={settings.weights} needs Trainium3, but the target is {target}. Set "
            "NEURONJAX_TARGET to a trn3 target, or choose int8 or float8_e4m3."
        )
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise CheckpointError(f"--out={out} is not empty. Give a new or empty directory.")
    writer = load_run(checkpoint_dir, mesh) if model is None else load_directory(model, mesh)
    trained, tokenizer, _ = writer
    if any(".kernel_narrow." in name for name in trained.parameters):
        raise SettingsError(f"--model={model} is already quantised. Give the original weights.")
    data = open_text(
        data_config,
        tokenizer,
        vocab_size=trained.config.vocab_size,
        seq_len=trained.config.max_seq_len,
        seed=0,
    )
    held_out = list(held_out_batches(islice(data.held_out, settings.report_rows), BATCH))
    if not held_out:
        raise DataError("no data is held out for the report. Raise --held_out_fraction.")
    reference = as_reference(trained, dtype)
    chosen, left = choose(kernels(trained), storage, settings.ignored, trained.parameters)
    if not chosen:
        raise SettingsError(f"no layer can be stored as {settings.weights}: {left}")
    say(f"{len(chosen)} kernels are quantised to {settings.weights}, {len(left)} stay as they are")
    batches = make_batches(data.rows, min(BATCH, settings.calibration_rows))
    rows = -(-settings.calibration_rows // BATCH)
    seen = observe(reference, (np.asarray(next(batches)["tokens"]) for _ in range(rows)))
    exact = trained._replace(config=reference.config)
    narrow = quantise(exact, settings, chosen, list(left), seen)
    narrow = narrow._replace(
        parameters={
            name: value.astype(dtype) if value.dtype == "float32" and _is_wide(name) else value
            for name, value in narrow.parameters.items()
        }
    )
    accuracy = measure(reference, narrow, held_out, left)
    pretrained.save(out, narrow)
    copy_companions(checkpoint_dir if model is None else model, out)
    accuracy.save(out / REPORT)
    return accuracy


def _is_wide(name: str) -> bool:
    return "_narrow." not in name and ".cache_scales." not in name
