"""The planner behind the command `neuronjax plan`."""

from collections.abc import Iterator, Sequence
from typing import Any

from launch.emulation import Processes
from launch.errors import MeshError
from launch.planning import report
from launch.planning.pieces import Answer, Asked, measure
from launch.planning.question import Question, ask
from launch.planning.search import Search
from launch.planning.space import RECOMPUTATION, Piece, Plan, Space
from launch.program import guarded, say

FOUND, NOTHING_FITS = 0, 1
"""Exit codes."""
DIED = "the process that measured it died without a result, perhaps because memory ran out"


def plan(
    model: str,
    *,
    target: str | None = None,
    machines: int | None = None,
    batch: int | None = None,
    length: int | None = None,
    precision: str | None = None,
    top: int = 10,
    workers: int = 2,
    price: float | None = None,
    as_json: bool = False,
) -> int:
    """Prints the best plans of a training run and returns the exit code.

    What is None is the preset's. What cannot be is said in one line, with the exit code 1.
    """

    def run() -> int:
        question = ask(
            model, target=target, machines=machines, batch=batch, length=length,
            precisions=precision,
        )  # fmt: skip
        return _print_plans(question, top, workers, price, as_json)

    return guarded(run)


def _print_plans(
    question: Question, top: int, workers: int, price: float | None, as_json: bool
) -> int:
    space = Space(question)
    if not space.plans:
        raise MeshError(_nothing_divides(space))
    with Processes(workers) as processes:

        def measured(asked: Sequence[Asked]) -> Iterator[Answer]:
            answers: dict[int, Answer] = {}
            for number, answer in processes(measure, asked):
                answers[number] = DIED if answer is None else answer
                say(f"measured {_name(asked[number])}")
            return iter([answers[number] for number in range(len(asked))])

        search = Search(space, top=top, also=published(question))
        outcome = search.run(measured, workers)
    rows = [(best, search.estimate(best, price)) for best in outcome.best]
    if as_json:
        print(report.to_json(question, outcome, rows))
    elif rows:
        own = None if outcome.also is None else (outcome.also, search.estimate(outcome.also, price))
        print(report.text(question, outcome, rows, own))
    else:
        say(f"error: {report.no_plan(question, outcome)}")
    return FOUND if rows else NOTHING_FITS


def published(question: Question) -> Plan | None:
    """The plan that a preset has by itself, if the question is about its machines and batch."""
    recipe = question.recipe
    if recipe is None or recipe.recompute not in RECOMPUTATION:
        return None
    replicas, rest = divmod(question.cores, recipe.tensor * recipe.pipeline * recipe.context)
    if rest or not replicas or question.batch % replicas:
        return None
    piece = Piece(
        tensor=recipe.tensor, context=recipe.context, recompute=recipe.recompute,
        precision=question.precisions[0], stacked=recipe.pipeline > 1,
    )  # fmt: skip
    return Plan(
        piece=piece, data=replicas, fsdp=1, stages=recipe.pipeline,
        micro_batches=question.batch // replicas, zero_1=True,
    )  # fmt: skip


def _nothing_divides(space: Space) -> str:
    question = space.question
    if space.refused and all(name.startswith("tensor") for name in space.refused):
        return "; ".join(dict.fromkeys(space.refused.values()))
    below, above = space.nearest_batches()
    near = " or ".join(str(size) for size in (below, above) if size)
    return (
        f"--batch={question.batch}: no plan shares {question.batch} sequences equally among "
        f"{question.cores:,} cores of {question.machines} x {question.target}. Choose a multiple "
        f"such as {near}, or fewer machines."
    )


def _name(asked: Asked) -> str:
    if asked.of_update:
        return "the optimizer"
    piece: Any = asked.piece
    what = "blocks of a stage" if piece.stacked else "blocks"
    what += " with FSDP" if piece.sharded else ""
    degrees = {"TP": piece.tensor, "CP": piece.context, "EP": piece.expert}
    sizes = " ".join(f"{name}{size}" for name, size in degrees.items() if size > 1 or name == "TP")
    return f"{what}, {sizes}, rows {piece.rows}, recompute {piece.recompute}, {piece.precision}"
