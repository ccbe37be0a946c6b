"""``neuronjax plan``: the best way to divide a training run over machines."""

from __future__ import annotations

import argparse

import jax

from neuronjax.cli.arguments import amount, whole
from neuronjax.errors import ConfigurationError, ScriptError
from neuronjax.planning.workload import Factory, load

PLANNER = "launch.planning.command:plan"
"""What searches; it comes with the repository's trainer, not with this package."""

DESCRIPTION = """\
Finds the fastest ways to train a model on a set of machines with launch.train: the degrees of
tensor (TP), pipeline (PP), context (CP), expert (EP) and data parallelism (DP) and of FSDP,
micro-batches, pipeline schedule, recomputation and ZeRO-1, with the memory of a core
as the limit. Prints the best plan of each combination of TP, PP, CP and EP, fastest first, with
time, range, MFU, memory and price, where each loses time against the first, and its command line.

MODEL is a preset of launch.train (--preset=help there lists them), which says the machines, the
batch and the length too, or what its --model takes: a Hugging Face directory, a config.json.

How: a step's time is a sum of pieces: blocks, embedding and head of a micro-batch, gradients and
weights between cores, the optimizer. Steps of one and two blocks are compiled and simulated, never
whole plans, and only while a plan of such blocks could still be among the best. All plans are
compared: divisors of the cores; TP stays within a machine, and CP divides rows of at least 16,384
tokens only. Offloading, recompute=dots, chunks of stages and accumulation around pipelines are not
searched. A piece takes 6 to 20 s of CPU time, and some tens are measured: --top=3 needs fewer than
--top=10.

Examples:
  neuronjax plan hf_llama3.1_8B
  neuronjax plan hf_llama3.1_70B --machines=16 --top=5
  neuronjax plan config.json --target=trn2.48xlarge --machines=4 --batch=256 --length=4096

Exit codes: 0 there is a plan, 1 none fits or the input cannot be used, 2 wrong usage.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="a preset, a directory or a config.json")
    parser.add_argument(
        "--target", help="the kind of machine (default: the preset's, or trn1.32xlarge)"
    )
    parser.add_argument("--machines", type=whole(1, 4096), help="(default: the preset's, or 1)")
    parser.add_argument("--batch", type=whole(1), help="sequences of a step, over all cores")
    parser.add_argument(
        "--length",
        type=whole(1),
        help="tokens of a sequence (default: the preset's, or the model's context)",
    )
    parser.add_argument(
        "--precision", metavar="A,B,…",
        help="recipes of launch.train's --precision to choose from (default: the preset's)",
    )  # fmt: skip
    parser.add_argument(
        "--top",
        type=whole(1, 100),
        default=10,
        help="plans to print; fewer are found sooner (default: 10)",
    )
    parser.add_argument(
        "--workers", type=whole(1, 64), default=2, help="processes that measure pieces (default: 2)"
    )
    parser.add_argument(
        "--price", type=amount, help="US dollars per instance and hour (default: AWS's)"
    )
    parser.add_argument("--json", action="store_true", help="print one object")


def run(arguments: argparse.Namespace) -> int:
    """Prints the plans."""
    jax.config.update("jax_platforms", "cpu")
    code: int = _planner().make(
        arguments.model,
        target=arguments.target,
        machines=arguments.machines,
        batch=arguments.batch,
        length=arguments.length,
        precision=arguments.precision,
        top=arguments.top,
        workers=arguments.workers,
        price=arguments.price,
        as_json=arguments.json,
    )
    return code


def _planner() -> Factory:
    try:
        return load(PLANNER)
    except ScriptError:
        raise ConfigurationError(
            "plans are for launch.train, which comes with neuronjax's repository: run this in a "
            "checkout."
        ) from None
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"launch.train needs {error.name}, which is not installed: pip install --group models."
        ) from None
