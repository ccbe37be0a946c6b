"""Random valid configs of every family against the reference: odd sizes, every flag.

    python -m tests.models.parity.random_configs [--count=20] [--names=Llama,Bert] [--every]

Of the first case of a family, or with --every of each architecture, sizes, flags and constants are
drawn anew. A config that the reference refuses is drawn again; what ours refuses is counted with
its reason; all others must give the reference's outputs. The file has a row per architecture, with
the commit at which it ran, and is written after each; a later call goes on from it.
"""

import argparse
import json
import subprocess
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import jax
import numpy as np

from models import pretrained
from models.errors import ModelsError
from models.parameters import merge
from models.registry import ARCHITECTURES
from tests.models.parity import ours
from tests.models.parity.case import Case
from tests.models.parity.cases import CASES
from tests.models.parity.families import RESULTS, families
from tests.models.parity.reference import HEADS, make_model
from tests.quick_compile import set_for_all_programs

TOLERANCE = {"rtol": 1e-4, "atol": 1e-4}
DRAWS = 300  # of one config, before the architecture is given up
_ACTS = ("gelu", "relu", "silu", "gelu_new")
_ACT_FIELDS = ("hidden_act", "activation_function", "activation")
_LEFT = ("use_cache", "is_decoder", "output_attentions", "add_cross_attention", "return_dict")


def draw(case: Case, defaults: Mapping[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """A config near that of a case."""
    config = dict(case.config)
    if {"hidden_size", "num_attention_heads"} <= set(config):
        heads = int(rng.integers(1, 6))
        width = int(2 * rng.integers(1, 7))
        config |= {"num_attention_heads": heads, "hidden_size": heads * width}
        if "num_key_value_heads" in config:
            divisors = [n for n in range(1, heads + 1) if heads % n == 0]
            config["num_key_value_heads"] = int(rng.choice(divisors))
        if "head_dim" in config:
            config["head_dim"] = int(2 * rng.integers(1, 9))
    for name, low, high in (
        ("num_hidden_layers", 1, 4),
        ("intermediate_size", 3, 70),
        ("encoder_ffn_dim", 3, 70),
        ("num_labels", 1, 7),
    ):
        if name in config:
            config[name] = int(rng.integers(low, high))
    if "vocab_size" in config:
        config["vocab_size"] += int(rng.integers(0, 30))
    for name, value in {**defaults, **config}.items():
        if isinstance(value, bool) and name not in _LEFT and rng.random() < 0.3:
            config[name] = not value
        elif name.endswith("eps") and isinstance(value, float):
            config[name] = float(10 ** rng.uniform(-7, -3))
        elif name == "rope_theta" and isinstance(value, float):
            config[name] = float(10 ** rng.uniform(2, 6))
        elif name in _ACT_FIELDS and isinstance(value, str) and rng.random() < 0.5:
            config[name] = str(rng.choice(_ACTS))
    return config


class Expected(NamedTuple):
    """A random model of the reference, its inputs and its outputs."""

    model: Any
    inputs: Mapping[str, np.ndarray]
    outputs: Mapping[str, Any]


def expect(case: Case) -> Expected | None:
    """What the reference makes of a config; None if it refuses it, with whatever it raises."""
    try:
        model = make_model(case)
        inputs, outputs, _ = HEADS[ARCHITECTURES[case.architecture].task](model, case)
    except Exception:
        return None
    return Expected(model, inputs, outputs)


def compare(case: Case, expected: Expected) -> None:
    """Raises AssertionError where outputs differ, ModelsError where ours refuses the config."""
    task = ARCHITECTURES[case.architecture].task
    with TemporaryDirectory() as directory:
        expected.model.save_pretrained(directory)
        loaded = pretrained.load(Path(directory))

    @jax.jit
    def run(parameters: Any, inputs: Any) -> Any:
        return ours.HEADS[task](merge(loaded.graph, parameters), **inputs)

    got = run(loaded.parameters, expected.inputs)
    for name, value in expected.outputs.items():
        np.testing.assert_allclose(got[name], value.detach().numpy(), **TOLERANCE, err_msg=name)


def try_architecture(case: Case, count: int, seed: int) -> dict[str, Any]:
    """The row of an architecture."""
    defaults = ARCHITECTURES[case.architecture].known.config
    rng = np.random.default_rng([seed, *case.architecture.encode()])
    equal, redrawn = 0, 0
    refused: Counter[str] = Counter()
    different = []
    while equal + len(different) < count and redrawn + sum(refused.values()) < DRAWS:
        drawn = replace(case, config=draw(case, defaults, rng))
        expected = expect(drawn)
        if expected is None:
            redrawn += 1
            continue
        try:
            compare(drawn, expected)
            equal += 1
        except ModelsError as error:
            refused[str(error).split(": ")[-1][:100]] += 1
        except Exception as error:  # other outputs, or no clear refusal
            text = f"{type(error).__name__}: {error}"[:300]
            different.append({"config": dict(drawn.config), "error": text})
    return {"equal": equal, "different": different, "refused": refused, "redrawn": redrawn}


def _commit() -> str:
    asked = ["git", "rev-parse", "--short", "HEAD"]
    return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--names", default="", help="parts of names, with commas between them")
    parser.add_argument("--every", action="store_true", help="all architectures of each family")
    parser.add_argument("--out", type=Path, default=RESULTS)
    asked = parser.parse_args()
    set_for_all_programs()
    rows = json.loads(asked.out.read_text()) if asked.out.is_file() else {}
    cases = {case.architecture: case for case in reversed(CASES)} if asked.every else families()
    for name, case in cases.items():
        if any(part in name for part in asked.names.split(",")) and name not in rows:
            rows[name] = try_architecture(case, asked.count, asked.seed) | {"commit": _commit()}
            asked.out.write_text(json.dumps(rows, indent=1, sort_keys=True) + "\n")
            print(name, {key: value for key, value in rows[name].items() if value}, flush=True)


if __name__ == "__main__":
    main()
