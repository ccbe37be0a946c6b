"""Every architecture is compared with a reference."""

from models.registry import ARCHITECTURES
from tests.models.parity.cases import CASES


def test_every_architecture_is_compared_and_every_case_is_an_architecture() -> None:
    assert {case.architecture for case in CASES} == set(ARCHITECTURES)


def test_names_of_cases_are_unique() -> None:
    assert len({case.name for case in CASES}) == len(CASES)
