"""The plans that were found, as a table, as JSON, and as command lines of launch.train."""

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from launch.emulation import Estimate, Table, digits, duration_within, occupancy, rounded
from launch.planning.prediction import BLOCKS, Predicted
from launch.planning.question import Question
from launch.planning.search import Nearest, Outcome
from launch.planning.space import Plan

GIB = 1 << 30
_HEADINGS = (
    "", "TP", "PP", "CP", "EP", "DP", "FSDP", "settings", "step", "80 % range", "MFU", "HBM",
    "$ per step", "why it loses to the first",
)  # fmt: skip
_REMEDIES: Mapping[str, str] = {
    "weights": "more machines, as they are split already",
    "optimizer": "more machines, or a --precision with BF16 moments (bf16SR)",
    "gradients": "more machines, or a --precision with BF16 gradients (bf16SR)",
    "activations": "a shorter --length",
    "scratch": "a shorter --length, or more machines",
}
Row = tuple[Predicted, Estimate]


def command(question: Question, plan: Plan) -> str:
    """The command line of launch.train that runs a plan."""
    given = question.recipe is not None
    config = question.config(plan.parallelism, plan.piece.precision, question.batch)
    flags: dict[str, Any] = {"preset" if given else "model": question.model}
    if not given:
        flags["optimizer"] = config.optimizer.optimizer
    flags |= {
        "batch_size": question.batch,
        "seq_len": question.length,
        "precision": plan.piece.precision,
        "pipeline_parallel_size": plan.stages,
        "data_parallel_size": plan.data,
        "fully_sharded_size": plan.fsdp,
        "expert_parallel_size": plan.piece.expert,
        "context_parallel_size": plan.piece.context,
        "tensor_parallel_size": plan.piece.tensor,
        "gradient_accumulation_steps": 1 if plan.stages > 1 else plan.micro_batches,
        "recompute": plan.piece.recompute,
    }
    if plan.stages > 1:
        flags["pipeline_schedule"] = plan.schedule
        flags["pipeline_parallel_num_microbatches"] = plan.micro_batches
    words = [f"--{name}={shlex.quote(str(value))}" for name, value in flags.items()]
    words.append("--zero_1" if plan.zero_1 else "--nozero_1")
    return " ".join(("python -m launch.train", *words))


def text(question: Question, outcome: Outcome, rows: Sequence[Row], published: Row | None) -> str:
    """The table, what times rest on, and the command line of each plan."""
    return "\n\n".join(map(str, _parts(question, outcome, rows, published)))


def _parts(
    question: Question, outcome: Outcome, rows: Sequence[Row], published: Row | None
) -> Iterator[str | Table]:
    first = rows[0][0]
    lines = [_row(str(number), row, first) for number, row in enumerate(rows, 1)]
    if published is not None and published[0].plan.shape not in [row[0].plan.shape for row in rows]:
        lines.append(_row("preset", published, first))
    yield Table(lines, head=_HEADINGS, title=_title(question))
    yield (
        "The best plan of each combination of TP, PP, CP and EP. Times are sums of measured "
        f"pieces: {len(outcome.pieces)} of {outcome.candidates} were measured, for "
        f"{outcome.plans:,} plans; those of the others cannot be among these."
    )
    if published is not None:
        yield _of_published(rows, published)
    yield "\n".join(
        f"{number}: {command(question, predicted.plan)}"
        for number, (predicted, _) in enumerate(rows, 1)
    )


def _title(question: Question) -> str:
    machines = f"{question.machines} x {question.target} ({question.cores:,} cores)"
    work = f"{question.batch:,} sequences of {question.length:,} tokens"
    return f"{question.model}, {work} on {machines}"


def _row(name: str, row: Row, first: Predicted) -> tuple[str, ...]:
    predicted, estimate = row
    plan, piece = predicted.plan, predicted.plan.piece
    shown = digits(*estimate.range_ns) + 1
    price = "-" if estimate.usd_per_step is None else rounded(estimate.usd_per_step, shown)
    return (
        name, str(piece.tensor), str(plan.stages), str(piece.context), str(piece.expert),
        str(plan.data), str(plan.fsdp), settings(plan),
        *duration_within(estimate.step_ns, *estimate.range_ns),
        f"{rounded(estimate.mfu_estimated_percent, shown)} %", occupancy(estimate), price,
        "" if predicted is first else loses(predicted, first),
    )  # fmt: skip


def settings(plan: Plan) -> str:
    """The settings of a plan that are no degrees, in short."""
    piece = plan.piece
    words = [f"{plan.micro_batches} micro-batches of {piece.rows}", f"recompute {piece.recompute}"]
    words += ["ZeRO-1"] if plan.zero_1 else []
    if plan.stages > 1:
        words.append(plan.schedule)
    return ", ".join((*words, piece.precision))


def loses(predicted: Predicted, first: Predicted) -> str:
    """What a plan takes longer for than the first one: the largest differences, in seconds."""
    more = {name: predicted.parts[name] - first.parts[name] for name in first.parts}
    least = 0.1 * sum(more.values())
    worst = sorted((n for n in more if more[n] > max(least, 0)), key=lambda name: -more[name])[:2]
    said = [f"+{rounded(more[name])} s {name}{_why(name, predicted, first)}" for name in worst]
    return "; ".join(said) or "as fast"


def _why(name: str, predicted: Predicted, first: Predicted) -> str:
    if name != BLOCKS:
        return ""
    own, best = predicted.plan.piece, first.plan.piece
    names = ("tensor", "context", "recompute", "precision", "stacked", "sharded")
    changed = [n for n in names if getattr(own, n) != getattr(best, n)]
    flags = ("stacked", "sharded")
    words = [_said(n, getattr(own, n)) if n in flags else f"{n} {getattr(own, n)}" for n in changed]
    return f" ({', '.join(words)})" if words else ""


def _said(name: str, is_so: bool) -> str:
    return name if is_so else f"not {name}"


def _of_published(rows: Sequence[Row], published: Row) -> str:
    predicted = published[0]
    shapes = [row[0].plan.shape for row in rows]
    place = predicted.plan.shape in shapes and shapes.index(predicted.plan.shape) + 1
    where = f"its degrees are those of number {place}" if place else "it is not among these"
    return (
        f"The preset's own plan takes {rounded(predicted.seconds)} s a step "
        f"({settings(predicted.plan)}): {where}. Beside the first: {loses(predicted, rows[0][0])}."
    )


def no_plan(question: Question, outcome: Outcome) -> str:
    """Why there is no plan: what the nearest one lacks."""
    nearest = outcome.nearest
    if nearest is None:
        return f"no plan: {'; '.join(dict.fromkeys(outcome.refused.values()))}"
    return _short(question, nearest)


def _short(question: Question, nearest: Nearest) -> str:
    needed, capacity = sum(nearest.memory.values()), nearest.capacity
    kinds = sorted(nearest.memory, key=lambda kind: -nearest.memory[kind])
    listed = ", ".join(f"{kind} {nearest.memory[kind] / GIB:.2f} GiB" for kind in kinds)
    remedy = next((_REMEDIES[kind] for kind in kinds if kind in _REMEDIES), "more machines")
    plan, piece = nearest.plan, nearest.plan.piece
    shape = (
        f"TP{piece.tensor} PP{plan.stages} CP{piece.context} EP{piece.expert} DP{plan.data} "
        f"FSDP{plan.fsdp}, {settings(plan)}"
    )
    least = "" if nearest.is_measured else "at least "
    return (
        f"no plan fits {question.machines} x {question.target}: the nearest, {shape}, needs {least}"
        f"{needed / GIB:.2f} GiB of a core's {capacity / GIB:.2f} GiB, "
        f"{(needed - capacity) / GIB:.2f} GiB too much: {listed}. What to change: {remedy}."
    )


def to_json(question: Question, outcome: Outcome, rows: Sequence[Row]) -> str:
    """A JSON object: the question, and each plan with its estimate, parts and command line."""
    plans = [
        {
            "plan": asdict(predicted.plan),
            "command": command(question, predicted.plan),
            "seconds": predicted.seconds,
            "parts": dict(predicted.parts),
            "loses": "" if predicted is rows[0][0] else loses(predicted, rows[0][0]),
            "range_ns": estimate.range_ns,
            "mfu_estimated_percent": estimate.mfu_estimated_percent,
            "memory": dict(estimate.memory),
            "memory_range_bytes": estimate.memory_range_bytes,
            "usd_per_step": estimate.usd_per_step,
            "usd_per_million_tokens": estimate.usd_per_million_tokens,
        }
        for predicted, estimate in rows
    ]
    return json.dumps(
        {
            "question": asdict(question),
            "pieces_measured": len(outcome.pieces),
            "pieces": outcome.candidates,
            "plans_searched": outcome.plans,
            "plans": plans,
            "error": None if rows else no_plan(question, outcome),
        },
        indent=2,
    )
