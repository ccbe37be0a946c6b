"""Moves each number that the compiler chose (`lower.tuning`) by a quarter, and looks at estimates.

  python -m tests.conformance.sensitivity --out=runs/sensitivity.jsonl --part=1/4
  python -m tests.conformance.sensitivity --out=runs/sensitivity.jsonl \
      --summary=tests/conformance/sensitivity.json --commit=…

Programs are one of each kind of real_sizes, and layers of models. Every number that a
program's compilation asks for is moved down and up by a quarter, integers by one at least. --out
has a line for each program, and a later call goes on after them, so that parts can be computed one
by one. What is printed, and kept with --summary, are the programs whose time each number changes,
and the greatest changes; what changes no time of any program has no reason to be a choice.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import jax
from absl import app, flags

from launch import validation_models
from models.encoder.config import EncoderConfig
from neuronjax import workloads
from neuronjax.engine_compiler import Arranged
from neuronjax.lower.passes import Known
from neuronjax.lower.sync.synchronise import Semaphores
from neuronjax.lower.tuning import DEFAULT, Tuning, choices
from neuronjax.planning.estimate import setting_of
from neuronjax.planning.measure import (
    Partitioned,
    Setting,
    arrange,
    measure_lowered,
    partitioned,
)
from neuronjax.planning.tracing import abstract_mesh, trace
from neuronjax.planning.workload import Factory, Workload
from neuronjax.timing.simulations import Simulations
from tests.conformance.real_sizes.program import SizedProgram, sized_program
from tests.conformance.real_sizes.quick import QUICK

FLAGS = flags.FLAGS
_MOVES = (0.75, 1.25)
_SMALL = {"dim": 1024, "hidden": 2816, "heads": 8, "kv_heads": 2, "vocab": 8192, "depth": 1}
_BERT = EncoderConfig(
    vocab_size=2048, num_layers=1, dim=768, hidden_dim=3072, num_heads=12, num_positions=512,
    embedding_dim=768, head=validation_models.BERT_BASE.head,
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A program on a machine, made when it is asked for."""

    name: str
    make: Callable[[], tuple[Partitioned, Setting]]


class Watched(Tuning):
    """The default numbers, which know who of them was read."""

    def __getattribute__(self, name: str) -> Any:
        if name in _NAMES:
            object.__getattribute__(self, "__dict__").setdefault("read", set()).add(name)
        return object.__getattribute__(self, name)

    def asked(self) -> set[str]:
        """Returns the names that were read since the last call."""
        return vars(self).pop("read", set())


_NAMES = frozenset(choice.name for choice in choices())


def cases() -> Iterator[Case]:
    """All programs."""
    for kind, (seed, *_) in QUICK.items():
        program = sized_program(seed, kind)
        yield Case(program.name, lambda program=program: _of_size(program))
    for target in ("trn1.2xlarge", "trn2.3xlarge"):
        layers: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
            "decoder, a token": (workloads.decode, {**_SMALL, "context": 2048, "batch": 4}),
            "decoder, training": (workloads.train, {**_SMALL, "sequence": 512, "batch": 1}),
            "encoder": (validation_models.bert, {"config": _BERT}),
        }
        for name, (function, settings) in layers.items():
            yield Case(
                f"{name} on {target}",
                lambda function=function, settings=settings, target=target: _of_layer(
                    function, settings, target
                ),
            )


def _of_size(program: SizedProgram) -> tuple[Partitioned, Setting]:
    given = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in program.arguments.values()]
    if program.mesh:
        mesh = abstract_mesh(program.mesh)
        specs = (jax.sharding.PartitionSpec(*program.splits[name]) for name in program.arguments)
        placed = (jax.sharding.NamedSharding(mesh, spec) for spec in specs)
        given = [
            jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=sharding)
            for a, sharding in zip(given, placed, strict=True)
        ]
    return _prepared(Workload(fn=program.step, arguments=tuple(given)), program.machine)


def _of_layer(
    function: Callable[..., Any], settings: Mapping[str, Any], target: str
) -> tuple[Partitioned, Setting]:
    factory = Factory(make=function, name=function.__name__, settings=settings)
    workload, _ = factory.build(1, mesh=abstract_mesh({"model": 1}))
    return _prepared(workload, target)


def _prepared(workload: Workload, target: str) -> tuple[Partitioned, Setting]:
    setting = setting_of(target, None)
    return partitioned(trace(workload), setting), setting


@dataclass
class Trials:
    """A program with one number moved at a time.

    What a number changes before kernels get their orders is seen before: an equal program takes as
    long as the usual one, unless the number is asked for afterwards as well. Kernels that several
    programs have in common get their semaphores, and are simulated, once.
    """

    prepared: Partitioned
    setting: Setting
    semaphores: Semaphores = field(default_factory=Semaphores)
    simulations: Simulations = field(default_factory=Simulations)

    def run(self, tuning: Tuning) -> tuple[Arranged, Setting]:
        """The program before its kernels get their orders."""
        setting = replace(
            self.setting, tuning=tuning, known=Known(semaphores=self.semaphores),
            simulations=self.simulations,
        )  # fmt: skip
        return arrange(self.prepared.program, self.prepared.traced.ranks, setting), setting

    def time_of(self, arranged: Arranged, setting: Setting) -> float:
        """The predicted time in ns."""
        traced = self.prepared.traced
        found = measure_lowered(
            arranged.complete(), self.prepared.program, traced.ranks, setting, traced.arguments
        )
        return found.numbers["total_ns"]

    def ratio(self, name: str, factor: float, usual: Arranged | None, whole: float) -> float | str:
        """The time with a number moved over the usual one, or why there is none."""
        try:
            arranged, setting = self.run(moved(name, factor))
            if usual is not None and arranged.program == usual.program:
                return 1.0
            return round(self.time_of(arranged, setting) / whole, 6)
        except Exception as error:  # the next number must be moved
            return f"{type(error).__name__}: {error}"[:160]


def moved(name: str, factor: float) -> Tuning:
    """The default numbers with one of them times a factor; an integer by one at least."""
    value = getattr(DEFAULT, name)
    new = value * factor
    if isinstance(value, int):
        new = round(new) if round(new) != value else value + (1 if factor > 1 else -1)
    return replace(DEFAULT, **{name: new})


def changes(case: Case) -> dict[str, Any]:
    """The time of a program, and that with each number that it asks for moved: ratios to it."""
    trials, watched = Trials(*case.make()), Watched()
    usual, setting = trials.run(watched)
    early = set(watched.asked())
    whole = trials.time_of(usual, setting)
    late = watched.asked()
    ratios = {
        name: [
            trials.ratio(name, factor, None if name in late else usual, whole)
            for factor in _MOVES
        ]
        for name in sorted(early | late)
    }  # fmt: skip
    return {"program": case.name, "time_ns": whole, "ratios": ratios}


def summary(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """For each number: programs that ask for it, those whose time it changes, the extremes."""
    table = {}
    for choice in choices():
        asked = [line for line in lines if choice.name in line.get("ratios", ())]
        pairs = [(line["program"], line["ratios"][choice.name]) for line in asked]
        changed = [(p, r) for p, each in pairs for r in each if isinstance(r, float) and r != 1.0]
        errors = [(p, r) for p, each in pairs for r in each if isinstance(r, str)]
        entry: dict[str, Any] = {
            "default": choice.default,
            "asked": len(asked),
            "changed": len({program for program, _ in changed}),
        }
        for name, choose in (("fastest", min), ("slowest", max)):
            if changed:
                program, ratio = choose(changed, key=lambda pair: pair[1])
                entry[name] = {"change": f"{ratio - 1:+.2%}", "program": program}
        if errors:
            entry["error"] = {"program": errors[0][0], "says": errors[0][1]}
        table[choice.name] = entry
    return table


def _printed(table: Mapping[str, Any]) -> Iterator[str]:
    yield f"{'number':24}{'default':>12}{'asked':>7}{'changed':>9}{'fastest':>10}{'slowest':>10}"
    for name, entry in sorted(table.items(), key=lambda item: -item[1]["changed"]):
        extremes = [entry.get(end, {}).get("change", "") for end in ("fastest", "slowest")]
        errors = "  does not fit" if "error" in entry else ""
        yield (
            f"{name:24}{entry['default']:>12g}{entry['asked']:>7}{entry['changed']:>9}"
            f"{extremes[0]:>10}{extremes[1]:>10}{errors}"
        )


def main(_: list[str]) -> None:
    jax.config.update("jax_platforms", "cpu")
    out = Path(FLAGS.out)
    lines = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
    known = {line["program"] for line in lines}
    number, parts = map(int, FLAGS.part.split("/"))
    out.parent.mkdir(parents=True, exist_ok=True)
    for index, case in enumerate(cases()):
        if index % parts == number - 1 and case.name not in known:
            line = changes(case)
            lines.append(line)
            with out.open("a") as file:
                file.write(json.dumps(line) + "\n")
    table = summary(lines)
    print("\n".join(_printed(table)))
    if FLAGS.summary:
        document = {"commit": FLAGS.commit, "programs": len(lines), "numbers": table}
        Path(FLAGS.summary).write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    flags.DEFINE_string("out", None, "File for what is found, a line for each program.")
    flags.DEFINE_string("part", "1/1", "Of every N programs, the K-th: K/N.")
    flags.DEFINE_string("summary", None, "JSON file for the table.")
    flags.DEFINE_string("commit", "", "The commit that is measured, for the summary.")
    flags.mark_flag_as_required("out")
    app.run(main)
