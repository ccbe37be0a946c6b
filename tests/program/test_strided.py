"""Sets of numbers at strides, as counting their numbers says."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from neuronjax.program.strided import strided

STEPS = st.lists(
    st.tuples(st.sampled_from((-9, -4, -1, 0, 1, 2, 3, 4, 8, 12)), st.integers(1, 4)), max_size=4
)


def numbers(base: int, steps: list[tuple[int, int]]) -> set[int]:
    """All numbers, one by one."""
    walks = [range(size) for _, size in steps]
    return {
        base + sum(stride * at for (stride, _), at in zip(steps, place, strict=True))
        for place in itertools.product(*walks)
    }


@settings(max_examples=300, deadline=None)
@given(st.integers(-5, 5), STEPS)
def test_a_set_is_what_its_steps_reach(base: int, steps: list[tuple[int, int]]) -> None:
    made, expected = strided(base, steps), numbers(base, steps)
    assert numbers(made.first, list(made.terms)) == expected
    assert made.hull == (min(expected), max(expected))
    assert made.shifted(7) == strided(base + 7, steps)


@settings(max_examples=300, deadline=None)
@given(st.integers(-5, 5), STEPS)
def test_runs_are_all_of_a_set(base: int, steps: list[tuple[int, int]]) -> None:
    made, expected = strided(base, steps), numbers(base, steps)
    runs = made.runs(256)
    assert runs is not None
    assert {number for low, high in runs for number in range(low, high + 1)} == expected
    assert made.length == (len(expected) if len(runs) == 1 else None)
    assert made.runs(len(runs) - 1) is None


@settings(max_examples=300, deadline=None)
@given(STEPS, st.sampled_from((1, 2, 4)))
def test_a_run_of_bytes_is_one_of_elements(steps: list[tuple[int, int]], width: int) -> None:
    made = strided(0, steps)
    length, terms = made.run(width)
    assert (length // width, terms) == made.run()


@settings(max_examples=500, deadline=None)
@given(st.integers(-9, 9), STEPS, STEPS)
def test_sets_meet_in_a_number_of_both(
    base: int, steps: list[tuple[int, int]], others: list[tuple[int, int]]
) -> None:
    meets = strided(base, steps).meets(strided(0, others))
    assert meets == (not numbers(base, steps).isdisjoint(numbers(0, others)))
