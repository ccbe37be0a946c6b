"""Random programs: engines against the host, and the generator, its bounds and its shrinking."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random

import jax
import numpy as np
import pytest

from tests.conformance.random_programs import generate
from tests.conformance.random_programs.check import Pair
from tests.conformance.random_programs.compare import difference
from tests.conformance.random_programs.draw import Draw, Line, Unsuitable
from tests.conformance.random_programs.facts import Facts
from tests.conformance.random_programs.generate import FAMILIES, random_program
from tests.conformance.random_programs.program import Argument, RandomProgram, Value
from tests.conformance.random_programs.shrink import shrunk
from tests.conformance.random_programs.workers import Worker

KINDS = {name: kind for family in FAMILIES.values() for name, kind in family.items()}
F32 = np.dtype(np.float32)


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    with Pair("engine", "host") as processes:
        yield processes


@pytest.mark.parametrize("seed", range(30))
def test_engines_compute_what_the_host_computes(pair: Pair, seed: int) -> None:
    finding = pair.check(random_program(seed, statements=6))
    assert finding is None, f"{finding.error}\n{finding.program.reproducer}"


@pytest.mark.slow
def test_two_processes_compute_what_one_does() -> None:
    """To the bit."""
    with Pair("processes", "mesh") as processes:
        for seed in range(50):
            finding = processes.check(random_program(seed, statements=6))
            assert finding is None, f"{finding.error}\n{finding.program.reproducer}"


def test_a_seed_is_a_program() -> None:
    assert random_program(7).reproducer == random_program(7).reproducer
    assert random_program(7).reproducer != random_program(8).reproducer


def test_every_kind_of_statement_is_written() -> None:
    assert {name for name, kind in KINDS.items() if not _is_written(kind)} == set()


def _is_written(kind: Callable[[Draw], Line]) -> bool:
    for seed in range(60):
        draw = Draw(Random(seed))
        for number in range(8):
            dtype = draw.dtype()
            array, facts = draw.array(draw.shape(), dtype)
            draw.values.append(Value(f"v{number}", array.shape, dtype, facts.stored(dtype)))
        try:
            generate.traced(kind(draw), "v8")
        except Unsuitable:
            continue
        return True
    return False


@pytest.mark.parametrize("kind", ["reduce_total", "sort", "dot"])
def test_programs_shrink_to_the_statement_that_fails(kind: str) -> None:
    programs = (random_program(seed) for seed in range(1000))
    program = next(
        each for each in programs if kind in _kinds(each)[2:-2] and len(each.results) > 1
    )
    small = shrunk(program, lambda candidate: kind in _kinds(candidate), _zeros)
    assert _kinds(small) == [kind]
    assert all(not argument.array.any() for argument in small.arguments)


def _kinds(program: RandomProgram) -> list[str]:
    return [statement.kind for statement in program.statements]


def _zeros(program: RandomProgram) -> list[np.ndarray]:
    return [np.zeros(program.values[n].shape, program.values[n].dtype) for n in program.results]


@pytest.mark.parametrize(
    ("facts", "got", "want", "is_wrong"),
    [
        (Facts(4, 1), 1, 1, False),
        (Facts(4, 1), np.nan, np.nan, False),
        (Facts(4, 1), np.nextafter(F32.type(1), F32.type(2)), 1, True),
        (Facts(4, 1), -0.0, 0.0, True),
        (Facts(4, 1, any_zero=True), -0.0, 0.0, False),
        (Facts(4, 1, absolute=0.1), 1.05, 1, False),
        (Facts(4, 1, absolute=0.1), 1.15, 1, True),
        (Facts(4, 1, relative=0.1), 2.15, 2, False),
        (Facts(4, 1, absolute=0.1), np.inf, 1, True),
        (Facts(4, 1, absolute=0.1), np.nan, 1, True),
        (Facts(4, 1, absolute=0.1), np.inf, np.inf, False),
        (Facts(4, 1, absolute=np.inf), np.nan, 1, False),
    ],
)
def test_differences(facts: Facts, got: float, want: float, is_wrong: bool) -> None:
    argument = Argument(Value("v0", (1,), F32, facts), np.zeros(1, np.float32))
    program = RandomProgram((argument,), (), ("v0",))
    arrays = [np.full((1,), number, np.float32) for number in (got, want)]
    assert bool(difference(program, [arrays[0]], [arrays[1]])) == is_wrong


def test_failures_are_differences_unless_both_fail() -> None:
    program = random_program(0)
    results = _zeros(program)
    assert difference(program, "ValueError: no", results)
    assert difference(program, "Crash: no", "ValueError: no")
    assert not difference(program, "ValueError: no", "ValueError: other words")


@pytest.mark.parametrize(("cpu", "is_finding"), [("Crash: status -6", False), ("no", True)])
def test_what_kills_xla_itself_is_no_finding(
    monkeypatch: pytest.MonkeyPatch, cpu: str, is_finding: bool
) -> None:
    outcomes = iter(["values", "Crash: status -6", cpu] * 1000)
    monkeypatch.setattr(Worker, "run", lambda worker, program: next(outcomes))
    with Pair("engine", "host") as processes:
        assert (processes.check(random_program(0)) is not None) == is_finding


def test_scalars_differ() -> None:
    argument = Argument(Value("v0", (), F32, Facts(4, 1)), np.zeros((), np.float32))
    program = RandomProgram((argument,), (), ("v0",))
    assert "[1.0] instead of [2.0]" in difference(program, [np.float32(1)], [np.float32(2)])


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 103))
def test_facts_hold(seed: int) -> None:
    """What is said of values without computing them is so."""
    program = random_program(seed)
    program = program.returning(program.values)
    scope: dict[str, Callable[..., tuple[jax.Array, ...]]] = {}
    exec(program.source, scope)  # type: ignore[arg-type]
    cpu = jax.devices("cpu")[0]
    with jax.default_device(cpu):
        results = jax.jit(scope["program"])(*[each.array for each in program.arguments])
    for name, result in zip(program.results, results, strict=True):
        array, facts = np.asarray(result).astype(np.float64), program.values[name].facts
        finite = array[np.isfinite(array)]
        assert facts.special or finite.size == array.size
        assert (np.abs(finite) <= facts.bound + facts.difference).all()
        if facts.quantum and facts.exact:
            assert not np.remainder(finite, facts.quantum).any()
