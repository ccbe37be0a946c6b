"""The smallest program that still fails: statements give way to the values that they had."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from tests.conformance.random_programs.program import Argument, RandomProgram

Fails = Callable[[RandomProgram], bool]


def shrunk(
    program: RandomProgram, fails: Fails, values: Callable[[RandomProgram], list[np.ndarray] | None]
) -> RandomProgram:
    """A program of which no result and no statement can be taken away, with plain arguments.

    `fails` says whether a program shows the failure, `values` computes one's results.
    """
    program = _first_failing(
        (program.returning([name]) for name in program.results), fails, program
    )
    computed = program.returning(program.values)
    results = values(computed)
    if results is not None:
        known = dict(zip(computed.results, results, strict=True))
        program = _without_statements(program, known, fails)
    sooner = (program.returning([name]) for name in list(program.values)[:-1])
    program = _first_failing(sooner, fails, program)
    return _plainer(program, fails)


def _with_fewer_results(program: RandomProgram, fails: Fails) -> RandomProgram:
    alone = _first_failing((program.returning([name]) for name in program.results), fails, program)
    if alone is not program:
        return alone
    for name in program.results:
        rest = [each for each in program.results if each != name]
        if rest and fails(program.returning(rest)):
            program = program.returning(rest)
    return program


def _first_failing(
    candidates: Iterator[RandomProgram], fails: Fails, otherwise: RandomProgram
) -> RandomProgram:
    return next((candidate for candidate in candidates if fails(candidate)), otherwise)


def _without_statements(
    program: RandomProgram, known: dict[str, np.ndarray], fails: Fails
) -> RandomProgram:
    """Statements become arguments: as many at once as possible, then one by one."""
    for keep in range(1, len(program.statements)):
        candidate = _given(program, len(program.statements) - keep, known)
        if fails(candidate):
            program = candidate
            break
    at = 0
    while at < len(program.statements) and len(program.statements) > 1:
        candidate = _replaced(program, at, known)
        if candidate is not None and fails(candidate):
            program = candidate
        else:
            at += 1
    return program


def _given(program: RandomProgram, count: int, known: dict[str, np.ndarray]) -> RandomProgram:
    """The program with the values of the first statements as arguments."""
    values = [value for each in program.statements[:count] for value in each.results]
    given = tuple(Argument(value, known[value.name]) for value in values)
    rest = replace(
        program, arguments=program.arguments + given, statements=program.statements[count:]
    )
    return rest.without_unused()


def _replaced(
    program: RandomProgram, at: int, known: dict[str, np.ndarray]
) -> RandomProgram | None:
    statement = program.statements[at]
    if {value.name for value in statement.results} & set(program.results):
        return None
    given = tuple(Argument(value, known[value.name]) for value in statement.results)
    statements = program.statements[:at] + program.statements[at + 1 :]
    return replace(
        program, arguments=program.arguments + given, statements=statements
    ).without_unused()


def _plainer(program: RandomProgram, fails: Fails) -> RandomProgram:
    """Arguments become zeros or ones."""
    for place, argument in enumerate(program.arguments):
        for number in (0, 1):
            array = np.full(argument.array.shape, number).astype(argument.array.dtype)
            arguments = list(program.arguments)
            arguments[place] = replace(argument, array=array)
            candidate = replace(program, arguments=tuple(arguments))
            if fails(candidate):
                program = candidate
                break
    return program
