"""What a config.json without some field means: the same as to the reference library."""

from collections.abc import Mapping
from typing import Any

import pytest
from huggingface_hub.errors import StrictDataclassError

from models.errors import ConfigError
from models.pretrained import describe_fields
from models.weights.fields import Fields
from tests.models.parity.cases import CASES, Case

transformers = pytest.importorskip(
    "transformers", reason="transformers is not installed: the reference needs the extra `parity`"
)

# A row for every config class, the first of the parity table; and its config without any field.
ROWS = {
    case.architecture: case for case in reversed(CASES) if hasattr(transformers, case.architecture)
}
NO_FIELD = "every field"
REFUSED = 3  # at most so many of a class's fields contradict the others once one is left out


def config_class(case: Case) -> Any:
    return getattr(transformers, case.architecture).config_class


FIRST = {config_class(case): case for case in reversed(ROWS.values())}


@pytest.mark.parametrize("case", FIRST.values(), ids=lambda case: case.architecture)
def test_a_missing_field_is_the_references(case: Case) -> None:
    whole = config_class(case)(**case.config).to_dict()
    files = {name: {k: v for k, v in whole.items() if k != name} for name in whole}
    files[NO_FIELD] = {}
    meanings = {name: completed(case, values) for name, values in files.items()}
    assert len([name for name, meaning in meanings.items() if meaning is None]) <= REFUSED
    differing = {
        name: (ours, theirs)
        for name, meaning in meanings.items()
        if meaning is not None
        if (ours := described(case, files[name])) != (theirs := described(case, meaning))
    }
    assert not differing


def completed(case: Case, values: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """All fields, as the reference completes them; None if it refuses them, as too few layers of
    `layer_types`."""
    try:
        return config_class(case).from_dict(dict(values)).to_dict()
    except StrictDataclassError:
        return None


def described(case: Case, values: Mapping[str, Any]) -> Any:
    """The config of these fields, or that they cannot be used."""
    fields = Fields({**values, "architectures": [case.architecture]}, "the test")
    try:
        return describe_fields(fields).config
    except ConfigError:
        return ConfigError
