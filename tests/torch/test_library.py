"""Without PyTorch, or with versions that were not tested."""

from __future__ import annotations

import importlib.metadata
import tomllib

import jax.numpy as jnp
import pytest

from neuronjax.errors import ConfigurationError
from neuronjax.torch import as_jax, library, to_jax
from tests.conftest import PROJECT


@pytest.mark.parametrize(
    ("versions", "said"),
    [
        ({}, "torch is not installed"),
        ({"torch": "2.99.0"}, r"torch 2\.99\.0 is installed"),
        ({"torch": "2.13.0+cpu"}, "torchax is not installed"),
        ({"torch": "2.13.1", "torchax": "0.0.130"}, r"torchax 0\.0\.130 is installed"),
    ],
)
def test_what_to_install(
    monkeypatch: pytest.MonkeyPatch, versions: dict[str, str], said: str
) -> None:
    def version(name: str) -> str:
        if name not in versions:
            raise importlib.metadata.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(importlib.metadata, "version", version)
    with pytest.raises(ConfigurationError, match=f"{said}.*pip install neuronjax.torch."):
        to_jax(object())
    assert as_jax(jnp.sin, (1.0,)) == (jnp.sin, (1.0,), {})


def test_the_tested_versions_are_those_of_the_extra() -> None:
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())
    extra = project["project"]["optional-dependencies"]["torch"]
    assert [line.removesuffix(".*") for line in extra] == [
        f"{name}=={release}" for name, release in library.TESTED.items()
    ]
