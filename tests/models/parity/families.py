"""The types of models that random configs are drawn of, and where the results stand."""

from pathlib import Path

from models.registry import ARCHITECTURES
from tests.models.parity.case import Case
from tests.models.parity.cases import CASES

RESULTS = Path(__file__).parent / "random_configs.json"


def families() -> dict[str, Case]:
    """The first case of each type of model, by its architecture."""
    first: dict[str, Case] = {}
    for case in CASES:
        architecture = ARCHITECTURES[case.architecture]
        is_part = architecture.library == "diffusers"  # whose families have a class each
        first.setdefault(case.architecture if is_part else architecture.model_type, case)
    return {case.architecture: case for case in first.values()}
