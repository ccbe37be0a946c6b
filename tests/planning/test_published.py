"""Tables of measurements of whole models."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from neuronjax.cli.main import main
from neuronjax.errors import ConfigurationError, ScriptError
from neuronjax.planning.published import load_published, predictors_of
from neuronjax.timing.validation.points import Kind
from neuronjax.timing.validation.report import rows


def product(size: int) -> tuple:
    shape = jax.ShapeDtypeStruct((size, size), jnp.bfloat16)
    return jnp.matmul, shape, shape


def entry(**changes: object) -> dict:
    part = {"make": product, "target": "trn1.2xlarge", "settings": {"size": 256}}
    return {
        "name": "X1", "what": "a product", "published": 1e5, "source": "nowhere",
        "parts": (part, {**part, "times": 2}), **changes,
    }  # fmt: skip


TABLE = (entry(),)
MALFORMED = (entry(parts=({"make": product},)),)


def test_parts_add_up() -> None:
    (published,) = load_published(f"{__name__}:TABLE")
    one, two = (part.predicted_ns() for part in published.parts)
    assert two == 2 * one > 0
    (row,) = rows(predictors_of([published]))
    assert row.predicted == 3 * one
    assert row.point.kind is Kind.MODEL
    assert not row.point.is_calibrated


def test_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", "--models", f"{__name__}:TABLE", "--only", "X"]) == 0
    assert "validated against 1 public points" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "error"), [("MALFORMED", ConfigurationError), ("NONE", ScriptError)]
)
def test_refused(name: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        load_published(f"{__name__}:{name}")
