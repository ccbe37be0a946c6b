"""How instructions on registers and calls to the host execute."""

from __future__ import annotations

import numpy as np

from neuronjax.emulate.arithmetic import EXACT
from neuronjax.emulate.frame import Values
from neuronjax.emulate.rule import Rules
from neuronjax.emulate.unit import Run, Unit, shape_of
from neuronjax.errors import ArgumentMismatchError, MissingHostError
from neuronjax.program.control import (
    Host,
    RegisterArithmetic,
    RegisterLoad,
    RegisterMove,
    RegisterStore,
    SemaphoreEvent,
)

_WORD, _SIGN = 1 << 32, 1 << 31


def wrapped(value: int) -> int:
    """An integer in 32 bits, two's complement."""
    return (value + _SIGN) % _WORD - _SIGN


def register_load(instruction: RegisterLoad, unit: Unit) -> Run:
    """dst = the one element of src."""
    place, read = unit.frame.registers[instruction.dst.name], unit.bits(instruction.src)

    def run(values: Values) -> None:
        values[place] = wrapped(int(read(values)[0, 0]))

    return run


def register_store(instruction: RegisterStore, unit: Unit) -> Run:
    """Writes src, a register, to the one element of dst."""
    place, write = unit.frame.registers[instruction.src.name], unit.output(instruction.dst)
    return lambda values: write(values, np.array([[values[place]]], np.int64))


def register_move(instruction: RegisterMove, unit: Unit) -> Run:
    """dst = src."""
    place, source = (
        unit.frame.registers[instruction.dst.name],
        unit.frame.register_value(instruction.src),
    )

    def run(values: Values) -> None:
        values[place] = wrapped(source(values))

    return run


def register_arithmetic(instruction: RegisterArithmetic, unit: Unit) -> Run:
    """dst = left op right."""
    place = unit.frame.registers[instruction.dst.name]
    left, right = (
        unit.frame.register_value(instruction.left),
        unit.frame.register_value(instruction.right),
    )
    operator = EXACT[instruction.op]

    def run(values: Values) -> None:
        result = operator(np.array(left(values)), np.array(right(values)))
        values[place] = wrapped(int(result))

    return run


def semaphore_event(instruction: SemaphoreEvent, unit: Unit) -> Run:
    """Does nothing itself; its waits and signals are what counts."""
    return lambda values: None


def host(instruction: Host, unit: Unit) -> Run:
    """dsts = function(srcs), by the function that the caller of `run` passed."""
    function = unit.host
    if function is None:
        raise MissingHostError(
            f"{unit.place.path}: {instruction.function} runs on the host, but run() was given no"
            " host function. Pass host=."
        )
    reads = [(unit.bits(src), shape_of(src)) for src in instruction.srcs]
    writes = [(unit.mover(dst), unit.dtype(dst), shape_of(dst)) for dst in instruction.dsts]

    def run(values: Values) -> None:
        results = function(
            instruction, [read(values).reshape(shape).copy() for read, shape in reads]
        )
        wanted = [(dtype, shape) for _, dtype, shape in writes]
        given = [(result.dtype, result.shape) for result in results]
        if wanted != given:
            raise ArgumentMismatchError(
                f"{unit.place.path}: {instruction.function} must return {wanted}, but the host"
                f" function returned {given}. Convert its results."
            )
        for (write, _, _), result in zip(writes, results, strict=True):
            write(values, result)

    return run


RULES: Rules = {
    RegisterLoad: register_load,
    RegisterStore: register_store,
    RegisterMove: register_move,
    RegisterArithmetic: register_arithmetic,
    SemaphoreEvent: semaphore_event,
    Host: host,
}
"""Instruction -> rule that turns it into a function."""
