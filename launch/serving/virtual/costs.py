"""What the steps of an engine take on a machine: which programs each consists of."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from launch.meshes import parse_mesh, text_of
from launch.serving.config import EngineConfig
from launch.serving.copies import COPIES
from launch.serving.errors import ServingError
from launch.serving.scheduler.buckets import Bucket
from launch.serving.scheduler.limits import SchedulerLimits
from launch.serving.speculation.config import SpeculativeConfig, read_speculative_config
from launch.serving.virtual.timings import Estimate, Machine, Program, Timings, measure
from launch.workloads import MODELS


class Proposing(NamedTuple):
    """The programs of a way to guess, beside those of the model."""

    reading: tuple[str, ...] = ()  # after every step without guesses, in its bucket
    guessing: tuple[str, ...] = ()  # of a step with guesses, in the bucket of its first tokens
    checked: tuple[str, ...] = ()  # of a step with guesses, in its bucket
    model: str = "step"  # the model's own program of a step without guesses


PROPOSING: Mapping[str, Proposing] = {
    "ngram": Proposing(),  # the host looks tokens up
    "draft_model": Proposing(("following",), ("guessing",)),
    "eagle": Proposing(
        ("eagle reading",), ("eagle guessing",), ("eagle reading guesses",), "whole step"
    ),
    "medusa": Proposing(("medusa reading",), ("medusa guessing",), ("medusa reading guesses",)),
}
WITH_MODEL = ("draft_model",)
"""Methods for which a model is named; the others' shapes follow from the model that is served."""


class Part(NamedTuple):
    """A program of a step, and its bucket by that of the step."""

    program: Program
    buckets: Mapping[Bucket, Bucket]


@dataclass(frozen=True)
class Costs:
    """The parts that the steps of each kind consist of."""

    plain: tuple[Part, ...]
    checked: tuple[Part, ...] = ()  # steps with guesses
    transfer: tuple[Part, ...] = ()  # the blocks of a text, from one copy of the model to another

    @classmethod
    def of(cls, machine: Machine, limits: SchedulerLimits, config: EngineConfig) -> "Costs":
        """The costs of an engine; `machine` is that of one copy of the model. Raises ServingError
        for a draft model that is not known."""
        wanted = speculation_of(config)
        room = (config.max_loras, config.max_lora_rank) if config.enable_lora else (0, 0)
        ours = Program(machine, limits.block_size, limits.blocks, "step", 0, *room)
        plain = {bucket: bucket for bucket in limits.buckets}
        transfer = _transfer(ours, limits) if config.disaggregated_prefill else ()
        if wanted is None:
            return cls((Part(ours, plain),), transfer=transfer)
        proposing, guesses = PROPOSING[wanted.method], wanted.num_speculative_tokens
        theirs = Program(_guesser(machine, wanted), limits.block_size, limits.blocks)
        checked = {bucket: bucket for bucket in limits.buckets.verifying(guesses)}
        first = {bucket: bucket._replace(tokens=1) for bucket in checked}

        def parts(names: tuple[str, ...], buckets: Mapping[Bucket, Bucket]) -> Iterator[Part]:
            for name in names:
                yield Part(theirs._replace(name=name, guesses=guesses), buckets)

        return cls(
            (Part(ours._replace(name=proposing.model), plain), *parts(proposing.reading, plain)),
            (
                Part(ours._replace(name="checking", guesses=guesses), checked),
                *parts(proposing.guessing, first),
                *parts(proposing.checked, checked),
            ),
            transfer,
        )

    def __iter__(self) -> Iterator[Part]:
        yield from (*self.plain, *self.checked, *self.transfer)

    @property
    def count(self) -> int:
        """How many buckets are timed."""
        return sum(len(set(part.buckets.values())) for part in self)


class Seconds(NamedTuple):
    """What steps take, by their buckets."""

    plain: Mapping[Bucket, float]
    checked: Mapping[Bucket, float]
    transfer: Mapping[Bucket, float]

    def moving(self, blocks: int) -> float:
        """What so many blocks take, as many as the next bucket has."""
        return min(
            (bucket.blocks, seconds)
            for bucket, seconds in self.transfer.items()
            if bucket.blocks >= blocks
        )[1]


def seconds_of_steps(
    costs: Costs,
    timings: Timings,
    on_bucket: Callable[[Bucket], None],
    estimate: Estimate = measure,
) -> Seconds:
    """Times all parts. Raises ServingError as `Timings.of` does."""

    def total(parts: tuple[Part, ...]) -> dict[Bucket, float]:
        sums: dict[Bucket, float] = {}
        for program, buckets in parts:
            known = timings.of(program, dict.fromkeys(buckets.values()), on_bucket, estimate)
            for bucket, own in buckets.items():
                sums[bucket] = sums.get(bucket, 0.0) + known[own]
        return sums

    return Seconds(total(costs.plain), total(costs.checked), total(costs.transfer))


def speculation_of(config: EngineConfig) -> SpeculativeConfig | None:
    """What is to be guessed. Raises ServingError for what cannot be."""
    return read_speculative_config(config.speculative_config, WITH_MODEL)


def _guesser(machine: Machine, wanted: SpeculativeConfig) -> Machine:
    """What guesses has the machine's cores, and weights and cache of the usual type."""
    model = wanted.model or machine.model
    if model not in MODELS:
        raise ServingError(
            f"--speculative_config: the draft model {model!r} is unknown; a simulation knows "
            f"{', '.join(MODELS)}"
        )
    return replace(machine, model=model, weights=None, cache_dtype=None)


def _transfer(ours: Program, limits: SchedulerLimits) -> tuple[Part, ...]:
    """Between the meshes of two copies, side by side where a machine has room for both."""
    sizes = {**parse_mesh(ours.machine.mesh), COPIES: 2}
    both = replace(ours.machine, mesh=text_of(sizes))
    program = Program(both, ours.block_size, ours.blocks, "moving")
    buckets = [Bucket(1, 1, blocks) for blocks in limits.buckets.blocks]
    return (Part(program, dict(zip(buckets, buckets, strict=True))),)
