"""The table of supported models says what is tested."""

from models.registry import ARCHITECTURES
from tests.models.parity.cases import CASES
from tests.models.parity.support import README, with_table


def test_every_architecture_is_compared_and_every_case_is_an_architecture() -> None:
    assert {case.architecture for case in CASES} == set(ARCHITECTURES)


def test_names_of_cases_are_unique() -> None:
    assert len({case.name for case in CASES}) == len(CASES)


def test_the_readme_is_current() -> None:
    text = README.read_text()
    assert with_table(text) == text, "run python -m tests.models.parity.support"
