"""Trains a decoder: `python -m launch.train --checkpoint_dir=DIR`.

Without --model it trains a byte-level Llama whose dimensions are flags; with --model, the
checkpoint in a Hugging Face directory, or a model with random weights from a config.json. It runs
on the platform that JAX_PLATFORMS selects. Run again with the same directory, it resumes from the
latest checkpoint. Ctrl-C saves the last completed step before stopping. Several processes, one per
host, are connected by JAX.
"""

import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from absl import flags

from launch.config import TrainConfig
from launch.errors import ModelError
from launch.estimates import define_estimate_flags, language_work, print_estimate
from launch.presets.choice import HELP, listing
from launch.presets.flags import chosen, define_preset_flags
from launch.program import run
from launch.run_file import write_run_file
from launch.run_flags import define_run_flags, run_of_flags, setting_names
from launch.source import (
    Source,
    byte_level,
    from_fields,
    from_path,
    tokenizer_directory,
    vocabulary_for,
    with_tokenizer,
)
from launch.trainer import train
from models.decoder.config import DecoderConfig
from models.errors import ConfigError

_RUN = TrainConfig(checkpoint_dir=Path("runs/decoder"))
_MODEL = DecoderConfig()

_MODEL_INTEGERS = {
    "num_layers": "Decoder blocks.",
    "dim": "Width of the residual stream.",
    "hidden_dim": "Width of the feed-forward block.",
    "num_heads": "Query heads.",
    "num_kv_heads": "Key-value heads.",
    "head_dim": "Width of a head.",
    "max_seq_len": "Context and training sequence length, in tokens.",
}


def _define_flags() -> None:
    define_run_flags(_RUN)
    for name, text in _MODEL_INTEGERS.items():
        flags.DEFINE_integer(name, getattr(_MODEL, name), text, lower_bound=1)
    flags.DEFINE_string(
        "model",
        None,
        "Hugging Face directory to start from, or a config.json for random weights; "
        "default: a byte-level Llama made from the flags below.",
    )
    flags.DEFINE_string(
        "tokenizer",
        None,
        "Directory with a tokenizer.json, for models that are made from flags or presets; "
        "default: one token per byte.",
    )
    flags.DEFINE_bool(
        "tie_embeddings", _MODEL.tie_embeddings, "Share the embedding table with the output layer."
    )
    define_preset_flags()
    define_estimate_flags()


def main() -> int:
    if flags.FLAGS.preset == HELP:
        print(listing())
        return 0
    values, choice = chosen(os.environ)
    fields = choice.model if values["model"] is None else None
    source = _source(values, fields)
    config = run_of_flags(_RUN, values)
    if values["estimate"] or values["explain_mesh"]:
        return print_estimate(language_work(source.model, config), config, choice.recipe, values)
    names = {*setting_names(_RUN), *_MODEL_INTEGERS, "tie_embeddings", "model", "tokenizer"}
    settings = {name: values[name] for name in sorted(names)}
    started = partial(
        write_run_file, settings=settings, model=fields, environment=choice.environment
    )
    return train(source, config, started)


def _source(values: dict[str, Any], fields: Mapping[str, Any] | None) -> Source:
    """The model of the flags, or of fields of a config.json. Raises ModelError if flags contradict
    each other."""
    dimensions = [*_MODEL_INTEGERS, "tie_embeddings"]
    if values["model"] is not None:
        names = [*dimensions, "tokenizer"]
        given = [f"--{name}" for name in names if flags.FLAGS[name].present]
        if given:
            raise ModelError(
                f"--model={values['model']} defines the model, so {', '.join(given)} cannot be "
                "given too. Leave one of them out."
            )
        return from_path(Path(values["model"]))
    text = values["tokenizer"]
    directory = None if text is None else tokenizer_directory(text)
    if fields is not None:
        source = from_fields(fields, f"--preset={values['preset'] or values['config']}")
    else:
        sizes = {name: values[name] for name in dimensions}
        if directory is not None:
            sizes["vocab_size"] = vocabulary_for(directory)
        try:
            source = byte_level(DecoderConfig(**sizes))
        except ConfigError as error:
            raise ModelError(f"{str(error).rstrip('.')}. Change the model flags.") from error
    return source if directory is None else with_tokenizer(source, directory)


if __name__ == "__main__":
    _define_flags()
    run(main)
