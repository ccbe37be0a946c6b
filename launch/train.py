"""Trains a decoder: `python -m launch.train --checkpoint_dir=DIR`.

Without --model it is a byte-level Llama whose dimensions are flags; with it the checkpoint of a
Hugging Face directory, or a random model of a config.json. Runs on whatever JAX_PLATFORMS selects.
Started again with the same directory it goes on from the newest checkpoint; Ctrl-C saves the last
completed step first.
"""

import os
from pathlib import Path
from typing import Any

from absl import flags

from launch.checkpoints import run_directory
from launch.config import TrainConfig
from launch.errors import ModelError
from launch.program import run
from launch.settings import define_flags, from_flags
from launch.source import Source, byte_level, from_path
from launch.trainer import train
from launch.training.platform import prepare_platform
from models.decoder.config import DecoderConfig
from models.errors import ConfigError

_RUN = TrainConfig(checkpoint_dir=Path("runs/decoder"))
_MODEL = DecoderConfig()

_STRINGS = {
    "checkpoint_dir": "Run directory: checkpoints and metrics.jsonl.",
    "mesh": "Device mesh such as data=4,model=2; default: fitted to the devices.",
}
_RUN_INTEGERS = {
    "steps": "Optimizer steps.",
    "batch_size": "Sequences per step, over all devices.",
    "seed": "Seed of the initial weights and of the order of the data.",
    "checkpoint_every": "Steps between checkpoints.",
    "keep": "How many of the newest checkpoints to keep.",
    "eval_every": "Steps between evaluations on held-out text.",
}
_RUN_FLOATS = {
    "clip_norm": "Largest global norm of the gradient.",
}
_MODEL_INTEGERS = {
    "num_layers": "Decoder blocks.",
    "dim": "Width of the residual stream.",
    "hidden_dim": "Width of the feed-forward block.",
    "num_heads": "Query heads.",
    "num_kv_heads": "Key-value heads.",
    "head_dim": "Width of a head.",
    "max_seq_len": "Context and training window, in tokens.",
}
_MAY_BE_ZERO = ("seed",)
_RECORDS = (
    "data",
    "schedule",
    "optimizer",
    "precision",
    "monitor",
)  # of a run, whose fields are flags


def _define_flags() -> None:
    for name, text in _STRINGS.items():
        default = getattr(_RUN, name)
        flags.DEFINE_string(name, None if default is None else str(default), text)
    for record, names in ((_RUN, _RUN_INTEGERS), (_MODEL, _MODEL_INTEGERS)):
        for name, text in names.items():
            lowest = 0 if name in _MAY_BE_ZERO else 1
            flags.DEFINE_integer(name, getattr(record, name), text, lower_bound=lowest)
    for name, text in _RUN_FLOATS.items():
        flags.DEFINE_float(name, getattr(_RUN, name), text, lower_bound=0.0)
    flags.DEFINE_string(
        "model",
        None,
        "Hugging Face directory to start from, or a config.json for random weights; default: a "
        "byte-level Llama of the flags below.",
    )
    flags.DEFINE_integer(
        "seq_len", None, "Training window, in tokens; default: the model's context.", lower_bound=1
    )
    flags.DEFINE_integer(
        "keep_every", None, "Keep checkpoints of every so many steps for good.", lower_bound=1
    )
    flags.DEFINE_bool("tie_embeddings", _MODEL.tie_embeddings, "Head = transposed embedding.")
    for name in _RECORDS:
        define_flags(getattr(_RUN, name))


def main() -> int:
    values = flags.FLAGS.flag_values_dict()
    source = _source(values)
    run_fields = [*_STRINGS, *_RUN_INTEGERS, *_RUN_FLOATS, "seq_len", "keep_every"]
    settings = {name: values[name] for name in run_fields}
    settings["checkpoint_dir"] = run_directory(settings["checkpoint_dir"])
    records = {name: from_flags(type(getattr(_RUN, name)), values) for name in _RECORDS}
    config = TrainConfig(**settings, **records)
    prepare_platform(config.precision.resolve(), config.seed, os.environ)
    return train(source, config)


def _source(values: dict[str, Any]) -> Source:
    """The model of the flags. Raises ModelError if they contradict each other."""
    dimensions = [*_MODEL_INTEGERS, "tie_embeddings"]
    if values["model"] is not None:
        given = [f"--{name}" for name in dimensions if flags.FLAGS[name].present]
        if given:
            raise ModelError(
                f"--model={values['model']} says what the model is, so {', '.join(given)} cannot "
                "be given too. Leave one of them out."
            )
        return from_path(Path(values["model"]))
    try:
        return byte_level(DecoderConfig(**{name: values[name] for name in dimensions}))
    except ConfigError as error:
        raise ModelError(f"{error}. Change the flags of the model.") from error


if __name__ == "__main__":
    _define_flags()
    run(main)
