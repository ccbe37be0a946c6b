"""Parts of the tests: together they are all cases, and the first has one of every test."""

from __future__ import annotations

import argparse
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.parts import ALL, Part, read_part, select_part


@given(
    st.lists(st.sampled_from([f"f::t{n}" for n in range(4)]), max_size=40),
    st.integers(min_value=1, max_value=7),
)
def test_parts_are_all_cases(functions: list[str], total: int) -> None:
    numbers = Counter[str]()
    names = []
    for function in functions:
        numbers[function] += 1
        names.append(f"{function}[{numbers[function]}[x]]")
    parts = [select_part(names, Part(number, total)) for number in range(1, total + 1)]
    assert sorted(name for part in parts for name in part) == sorted(names)
    assert {name.partition("[")[0] for name in parts[0]} == set(functions)
    assert max(map(len, parts)) == len(parts[0])


def test_parts_are_written_as_fractions() -> None:
    assert (read_part("1/1"), read_part("2/6")) == (ALL, Part(2, 6))
    for wrong in ("", "1", "0/2", "3/2", "1/0", "-1/2", "a/b"):
        with pytest.raises(argparse.ArgumentTypeError, match="part"):
            read_part(wrong)
