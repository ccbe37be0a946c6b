"""Surveys which models of PyTorch run, train and are attributed, and writes the table.

``python -m tests.torch.survey transformers --out=runs/survey.json`` goes on where it was
interrupted. Each model runs in a process of its own, forked from one that has the libraries.
"""

from __future__ import annotations

import argparse
import importlib
import json
import multiprocessing
import os
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ |= {
    "JAX_PLATFORMS": "neuron,cpu",
    "NEURONJAX_NUMERICS": "ieee",
    "NEURONJAX_LEGALITY": "off",
    "NEURONJAX_TARGET": "trn2.3xlarge",
    "NEURONJAX_SIMULATE": "0",
}
import warnings

import torch
import transformers

import neuronjax
from neuronjax.torch import library, to_jax
from tests.torch.survey.run import commit, failure
from tests.torch.survey.tiny import shrink

PARTS = {
    "transformers": ("architectures:of_transformers", "run"),
    "decoders": ("generation:of_decoders", "run"),
    "diffusers": ("diffusion:of_diffusers", "run"),
    "timm": ("images:of_timm", "run"),
    "training": ("training:of_modules", "training"),
    "attribution": ("attribution:of_models", "attribution"),
}
"""Where the models of each part of the survey are made, and what runs one."""


PASSED = ("equal", "attributed")


def main() -> None:
    """Runs what the table lacks."""
    parser = argparse.ArgumentParser()
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("survey.json"))
    parser.add_argument("--only", help="names, separated by commas")
    parser.add_argument("--first", type=int, default=120)
    parser.add_argument("--seconds", type=int, default=120, help="of CPU that a model may take")
    parser.add_argument("--again", action="store_true", help="those too that failed")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    _import_all()
    table = json.loads(arguments.out.read_text()) if arguments.out.exists() else {}
    rows = table.setdefault(arguments.part, {})
    place, runner = PARTS[arguments.part]
    file, _, function = place.partition(":")
    makers, run = getattr(_module(file), function)(), _module(runner).run
    names = arguments.only.split(",") if arguments.only else [*makers][: arguments.first]
    for name in names:
        known = rows.get(name)
        if known and (known["outcome"] in PASSED or not arguments.again):
            continue
        rows[name] = _alone(run, makers[name], arguments.seconds) | {"commit": commit()}
        print(name, json.dumps(rows[name]), flush=True)
        arguments.out.write_text(json.dumps(table, indent=1) + "\n")


def _import_all() -> None:
    """Loads what every model's process needs, once."""
    library.load()
    importlib.import_module("neuronjax.torch.calls")
    assert neuronjax.estimate
    bert = transformers.BertModel(shrink(transformers.BertConfig()))
    to_jax(bert, torch.zeros(1, 8, dtype=torch.int64))
    torch.set_num_threads(1)


def _module(name: str) -> Any:
    return importlib.import_module(f"tests.torch.survey.{name}")


def _alone(run: Callable[..., Any], make: Callable[[], Any], seconds: int) -> dict[str, Any]:
    """The row of a model, made in a process that may take so many seconds of CPU."""

    def work() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
        begin = time.monotonic()
        try:
            row = run(make)
        except BaseException as error:
            row = failure(error)
        sender.send(row | {"seconds": round(time.monotonic() - begin, 1)})

    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=work)
    process.start()
    sender.close()
    try:
        row = receiver.recv()
    except EOFError:
        row = {"outcome": "fails", "reason": f"not done after {seconds} s of CPU, or killed"}
    process.join()
    return row


if __name__ == "__main__":
    main()
