"""`neuronjax plan`: the search beside trying every plan, its memory, what it refuses, and whether
launch.train runs the command lines that it prints."""

import functools
import json
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import pytest

import neuronjax
from launch.emulation import Estimate
from launch.estimates import estimate, language_work
from launch.planning.command import plan as plan_command
from launch.planning.pieces import Answer, Asked, Measured, measure
from launch.planning.prediction import Predicted, Predictions, kept_of_block
from launch.planning.question import Question, ask, described_by
from launch.planning.report import command
from launch.planning.search import Search
from launch.planning.shares import Shares
from launch.planning.space import Piece, Plan, Space
from launch.presets.table import RECIPES
from launch.training.pipeline_schedule import make_schedule
from neuronjax.cli import main as cli
from tests.conftest import PROJECT

LLAMA = {
    "model_type": "llama", "vocab_size": 1024, "hidden_size": 256, "intermediate_size": 512,
    "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 32,
    "max_position_embeddings": 512, "tie_word_embeddings": False,
}  # fmt: skip
WIDE = LLAMA | {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 8}
MIXTRAL = LLAMA | {
    "model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2,
    "sliding_window": None,
}  # fmt: skip
LONG = LLAMA | {"max_position_embeddings": 32768}

CASES: dict[str, tuple[dict[str, object], str, int, int, int]] = {
    "two cores": (LLAMA, "trn1.2xlarge", 1, 16, 512),
    "two cores, one row": (LLAMA, "trn1.2xlarge", 1, 2, 512),
    "a whole machine": (LLAMA, "trn1.32xlarge", 1, 64, 512),
    "a machine, short rows": (LLAMA, "trn1.32xlarge", 1, 64, 64),
    "two machines": (LLAMA, "trn1.32xlarge", 2, 64, 512),
    "wide": (WIDE, "trn1.32xlarge", 1, 64, 512),
    "wide, few rows": (WIDE, "trn1.32xlarge", 1, 8, 512),
    "wide, few cores": (WIDE, "trn1.2xlarge", 1, 4, 512),
    "wide, odd batch": (WIDE, "trn1.32xlarge", 1, 24, 512),
    "experts": (MIXTRAL, "trn1.32xlarge", 1, 32, 512),
    "long rows": (LONG, "trn1.32xlarge", 1, 8, 32768),
    "another chip": (WIDE, "trn2.3xlarge", 1, 16, 512),
}
"""Fields of a config.json, machines, and what a step has: 12 small searches."""


@functools.cache
def example() -> Estimate:
    return neuronjax.estimate(lambda x: x @ x, jnp.zeros((128, 128)), target="trn1.2xlarge")


def made_up(asked: Asked) -> Answer:
    """A piece whose numbers are the arithmetic of its blocks at an efficiency that falls with how
    far they are divided: any search must rank plans alike, whatever measured them."""
    if asked.of_update:
        return 0.2
    piece, question = asked.piece, asked.question
    config = described_by(question.model).config
    width = config.dim * (4 * config.dim + 3 * config.hidden_dim) + config.dim * question.length
    alone = 6e-4 * piece.rows * question.length * width / 1000
    again = {"none": 1.0, "selective": 1.04, "full": 1.31}[piece.recompute]
    cut = 1.0 + 0.06 * (piece.tensor.bit_length() - 1) + 0.03 * (piece.context.bit_length() - 1)
    block = alone * again * cut * (1.07 if piece.stacked else 1.0)
    block = block * (1.02 if piece.sharded else 1.0) / piece.group + 500.0
    plan = Plan(piece=piece, data=1, fsdp=1, micro_batches=1, zero_1=False)
    kept = 2.0 * kept_of_block(config, plan, question.length)
    return Measured(
        block=block, outside=2 * block, outside_by_stages=block, scratch=4e8,
        layer_scratch=kept, slot=kept, spilled=0.0, layer_spilled=0.0, instructions=1e5,
        layer_instructions=1e5, example=example(),
    )  # fmt: skip


def runner(asked: Sequence[Asked]) -> Iterator[Answer]:
    return map(made_up, asked)


def question_of(folder: Path, fields: dict[str, object], *rest: object) -> Question:
    file = folder / "config.json"
    file.write_text(json.dumps(fields))
    target, machines, batch, length = rest
    return ask(
        str(file), target=str(target), machines=int(str(machines)), batch=int(str(batch)),
        length=int(str(length)), precisions=None,
    )  # fmt: skip


def by_trying_all(space: Space) -> list[Predicted]:
    """The best plan of each shape, fastest first, of all that there are."""
    predictions = Predictions(space.question, space.shares, 0.2)
    best: dict[tuple[int, ...], Predicted] = {}
    for piece, plans in space.plans.items():
        measured = made_up(Asked(space.question, piece))
        assert isinstance(measured, Measured)
        for plan in plans:
            predicted = predictions(plan, measured)
            known = best.get(plan.shape)
            if predicted.fits and (known is None or predicted.seconds < known.seconds):
                best[plan.shape] = predicted
    return sorted(best.values(), key=lambda predicted: predicted.seconds)


@pytest.mark.parametrize("name", CASES)
def test_search_finds_what_trying_all_plans_finds(name: str, tmp_path: Path) -> None:
    space = Space(question_of(tmp_path, *CASES[name]))
    found = Search(space, top=3).run(runner)
    expected = by_trying_all(space)[:3]
    assert [plan.seconds for plan in found.best] == pytest.approx(
        [plan.seconds for plan in expected], rel=1e-9
    )
    assert found.best[0].plan.shape == expected[0].plan.shape
    assert len(found.pieces) <= found.candidates


@pytest.mark.parametrize("name", ["1f1b", "gpipe"])
def test_slots_are_those_of_the_schedule(name: str) -> None:
    for stages, micro_batches in ((2, 8), (4, 2), (4, 8), (3, 12)):
        plan = Plan(
            piece=Piece(tensor=1, recompute="full", precision="fp32", stacked=True), data=1, fsdp=1,
            stages=stages, micro_batches=micro_batches, zero_1=False, schedule=name,
        )  # fmt: skip
        schedule = make_schedule(name, stages, micro_batches)
        assert plan.slots == schedule.slots
        busy = (schedule.forward.micro_batch >= 0).any(axis=1).sum()
        assert plan.passes == busy


REFUSED = {
    "no machine": (["hf_llama3.1_8B", "--target=trn9.large"], "is not a known instance"),
    "no model": (["hf_lama3.1_8B"], "Did you mean hf_llama3.1_8B"),
    "function": (["neuronjax.workloads:decode", "--batch=8"], "neuronjax sweep"),
    "task": (["hf_llama3_8B_SFT"], "plans are for training on plain text"),
    "precision": (["hf_llama3.1_8B", "--precision=fp4"], "there is no fp4"),
    "length": (["hf_llama3.1_8B", "--length=1000000"], "beyond the model's context"),
    "batch": (["hf_llama3.1_8B", "--batch=0"], "not a whole number"),
    "nothing divides": (["hf_llama3.1_8B", "--machines=64", "--batch=31"], "such as 30 or 32"),
    "memory": (
        ["hf_llama3.1_405B_trn1", "--machines=1", "--batch=32"],
        "GiB too much: optimizer",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_is_said_in_a_line(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jax.config.update", lambda *_: None)  # this process has its platforms
    words, said = REFUSED[name]
    try:
        code = cli.main(["plan", *words])
    except SystemExit as error:
        code = int(error.code or 0)
    captured = capsys.readouterr()
    assert code != 0
    assert said in captured.err, captured.err
    assert "Traceback" not in captured.err


PLANS = {
    "data": {"data": 4, "fsdp": 1, "tensor": 2},
    "fsdp": {"data": 2, "fsdp": 2, "tensor": 2, "recompute": "full"},
    "pipeline": {"data": 2, "fsdp": 1, "tensor": 2, "stages": 2},
    "context": {"data": 4, "fsdp": 1, "tensor": 1, "context": 2, "recompute": "selective"},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANS)
def test_launch_train_runs_the_command_line(name: str, tmp_path: Path) -> None:
    question = question_of(tmp_path, LLAMA, "trn1.32xlarge", 1, 16, 64)
    own = dict(PLANS[name])
    stages = int(str(own.get("stages", 1)))
    made = Plan(
        piece=Piece(
            tensor=int(str(own["tensor"])), context=int(str(own.get("context", 1))),
            recompute=str(own.get("recompute", "none")), precision="mixed_precision",
            stacked=stages > 1,
        ),
        data=int(str(own["data"])), fsdp=int(str(own["fsdp"])), stages=stages,
        micro_batches=4, zero_1=int(str(own["data"])) > 1,
    )  # fmt: skip
    words = shlex.split(command(question, made))[1:]
    (tmp_path / "text.txt").write_text("All that is measured can be planned. " * 400)
    done = subprocess.run(
        [
            sys.executable, *words, "--steps=2", f"--checkpoint_dir={tmp_path / 'run'}",
            f"--data={tmp_path / 'text.txt'}",
        ],
        cwd=PROJECT, capture_output=True, text=True, check=False,
        env={"PATH": "/usr/bin:/bin", "JAX_PLATFORMS": "neuron", "NEURON_RT_NUM_CORES": "8",
             "NEURONJAX_TARGET": "trn1.32xlarge", "HOME": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "step 2" in done.stdout


WHOLE: dict[str, dict[str, Any]] = {
    "data": {"data": 8, "fsdp": 1},
    "fsdp": {"data": 2, "fsdp": 4},
    "pipeline": {"data": 4, "fsdp": 1, "stages": 2},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", WHOLE)
def test_pieces_add_up_to_the_estimate_of_the_whole_step(name: str, tmp_path: Path) -> None:
    question = question_of(tmp_path, WIDE, "trn1.32xlarge", 1, 64, 512)
    degrees = WHOLE[name]
    stages = degrees.get("stages", 1)
    piece = Piece(
        tensor=4, recompute="full", precision="mixed_precision", stacked=stages > 1,
        sharded=degrees["fsdp"] > 1,
    )  # fmt: skip
    replicas = degrees["data"] * degrees["fsdp"]
    made = Plan(piece=piece, **degrees, micro_batches=64 // replicas, zero_1=True)
    rate, measured = (measure(Asked(question, piece, of_update)) for of_update in (True, False))
    assert isinstance(rate, float)
    assert isinstance(measured, Measured)
    predicted = Predictions(question, Shares(question), rate)(made, measured)
    config = question.config(made.parallelism, piece.precision, question.batch)
    recipe = replace(RECIPES["hf_llama3_8B"], instances=1)
    whole = estimate(
        language_work(described_by(question.model), config), config, recipe, price=None
    )
    assert predicted.seconds == pytest.approx(whole.step_seconds, rel=0.15)
    assert predicted.bytes == pytest.approx(whole.memory_bytes, rel=0.15)


@pytest.mark.slow
def test_plans_are_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | {"num_hidden_layers": 2}))
    code = plan_command(
        str(tmp_path / "config.json"), target="trn1.2xlarge", batch=2, length=64, top=1,
        as_json=True,
    )  # fmt: skip
    answer = json.loads(capsys.readouterr().out)
    assert code == 0
    (best,) = answer["plans"]
    assert best["command"].startswith("python -m launch.train --model=")
    assert best["seconds"] == pytest.approx(sum(best["parts"].values()))
    assert best["range_ns"][0] < best["seconds"] * 1e9 < best["range_ns"][1]
