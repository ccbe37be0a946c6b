"""How instructions for random numbers execute.

The hardware's generators are not documented. Here a lane hashes a counter with a seed: the first
word of its state is the seed, the second the counter, and the others keep the values they are set
to.
"""

from __future__ import annotations

import numpy as np

from neuronjax.emulate.frame import Values
from neuronjax.emulate.rule import Rules
from neuronjax.emulate.unit import LANES, Array, Part, Run, Unit
from neuronjax.machine.specs import Engine
from neuronjax.program.random_numbers import (
    Dropout,
    Rand2,
    RandGetState,
    RandSetState,
    Rng,
    SetRngSeed,
)
from neuronjax.rounding import NUMPY, random_bits

_SEED, _COUNT = 0, 1
_UNIT = np.float32(2.0**-24)


def draw(state: Array, count: int) -> Array:
    """`count` words of 32 random bits for each lane of a state [lanes, words], which advances."""
    counter = state[:, _COUNT, None] + np.arange(count, dtype=np.uint32)
    state[:, _COUNT] += np.uint32(count)
    return random_bits(NUMPY, counter, state[:, _SEED, None])


def uniform(state: Array, count: int) -> Array:
    """`count` numbers from [0, 1) for each lane, float32."""
    return (draw(state, count) >> np.uint32(8)).astype(np.float32) * _UNIT


def _lanes(unit: Unit, part: Part, values: Values, partitions: int) -> Array:
    engine = unit.instruction.engine
    assert engine is not None
    row = part.row(values)
    return unit.core.random[engine][row : row + partitions]


def rng(instruction: Rng, unit: Unit) -> Run:
    """dst = the lowest of 32 random bits."""
    dst, dtype = unit.part(instruction.dst), unit.dtype(instruction.dst)
    word = np.dtype(f"u{dtype.itemsize}")

    def run(values: Values) -> None:
        lanes = _lanes(unit, dst, values, instruction.dst.partitions)
        dst.move(values, draw(lanes, instruction.dst.free_elements).astype(word).view(dtype))

    return run


def rand2(instruction: Rand2, unit: Unit) -> Run:
    """dst = uniform in [low, high]."""
    dst, low, high = (
        unit.part(instruction.dst),
        unit.scalar(instruction.low),
        unit.scalar(instruction.high),
    )

    def run(values: Values) -> None:
        lanes = _lanes(unit, dst, values, instruction.dst.partitions)
        least = low(values)
        part = uniform(lanes, instruction.dst.free_elements) * (high(values) - least)
        dst.write(values, least + part)

    return run


def rand_set_state(instruction: RandSetState, unit: Unit) -> Run:
    """The engine's state = seeds."""
    seeds = unit.part(instruction.seeds)

    def run(values: Values) -> None:
        _lanes(unit, seeds, values, instruction.seeds.partitions)[...] = seeds.bits(values)

    return run


def rand_get_state(instruction: RandGetState, unit: Unit) -> Run:
    """dst = the engine's state."""
    dst = unit.part(instruction.dst)
    return lambda values: dst.move(values, _lanes(unit, dst, values, instruction.dst.partitions))


def set_rng_seed(instruction: SetRngSeed, unit: Unit) -> Run:
    """Gives every lane of the Vector engine its own seed, derived from a single one."""
    seed, state = unit.bits(instruction.seed), unit.core.random[Engine.VECTOR]
    lane = np.arange(LANES, dtype=np.uint32)

    def run(values: Values) -> None:
        word = seed(values).reshape(1).astype(np.uint32)
        state[...] = 0
        state[:, _SEED] = random_bits(NUMPY, lane, word)

    return run


def dropout(instruction: Dropout, unit: Unit) -> Run:
    """dst = data, an element replaced by zero with probability `prob`."""
    dst, data, prob = (
        unit.part(instruction.dst),
        unit.numbers(instruction.data),
        unit.scalar(instruction.prob),
    )

    def run(values: Values) -> None:
        lanes = _lanes(unit, dst, values, instruction.dst.partitions)
        stays = uniform(lanes, instruction.dst.free_elements) >= prob(values)
        dst.write(values, np.where(stays, data(values), np.float32(0)))

    return run


RULES: Rules = {
    Rng: rng,
    Rand2: rand2,
    RandSetState: rand_set_state,
    RandGetState: rand_get_state,
    SetRngSeed: set_rng_seed,
    Dropout: dropout,
}
"""Instruction -> rule that turns it into a function."""
