"""How instructions for random numbers execute.

The generators of the hardware are not documented. Here a lane hashes a counter with a seed: the
first word of its state is the seed, the second counts, and the others are kept as they are set.
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
    """`count` words of 32 random bits for each lane of a state [lanes, words], which goes on."""
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


def rng(each: Rng, unit: Unit) -> Run:
    """dst = the lowest of 32 random bits."""
    dst, dtype = unit.part(each.dst), unit.dtype(each.dst)
    word = np.dtype(f"u{dtype.itemsize}")

    def run(values: Values) -> None:
        lanes = _lanes(unit, dst, values, each.dst.partitions)
        dst.move(values, draw(lanes, each.dst.free_elements).astype(word).view(dtype))

    return run


def rand2(each: Rand2, unit: Unit) -> Run:
    """dst = uniform in [low, high]."""
    dst, low, high = unit.part(each.dst), unit.scalar(each.low), unit.scalar(each.high)

    def run(values: Values) -> None:
        lanes = _lanes(unit, dst, values, each.dst.partitions)
        least = low(values)
        part = uniform(lanes, each.dst.free_elements) * (high(values) - least)
        dst.write(values, least + part)

    return run


def rand_set_state(each: RandSetState, unit: Unit) -> Run:
    """The engine's state = seeds."""
    seeds = unit.part(each.seeds)

    def run(values: Values) -> None:
        _lanes(unit, seeds, values, each.seeds.partitions)[...] = seeds.bits(values)

    return run


def rand_get_state(each: RandGetState, unit: Unit) -> Run:
    """dst = the engine's state."""
    dst = unit.part(each.dst)
    return lambda values: dst.move(values, _lanes(unit, dst, values, each.dst.partitions))


def set_rng_seed(each: SetRngSeed, unit: Unit) -> Run:
    """Every lane of the Vector engine gets a seed of its own, made from one."""
    seed, state = unit.bits(each.seed), unit.core.random[Engine.VECTOR]
    lane = np.arange(LANES, dtype=np.uint32)

    def run(values: Values) -> None:
        word = seed(values).reshape(1).astype(np.uint32)
        state[...] = 0
        state[:, _SEED] = random_bits(NUMPY, lane, word)

    return run


def dropout(each: Dropout, unit: Unit) -> Run:
    """dst = data, an element replaced by zero with probability `prob`."""
    dst, data, prob = unit.part(each.dst), unit.numbers(each.data), unit.scalar(each.prob)

    def run(values: Values) -> None:
        lanes = _lanes(unit, dst, values, each.dst.partitions)
        stays = uniform(lanes, each.dst.free_elements) >= prob(values)
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
"""Instruction -> what makes it a function."""
