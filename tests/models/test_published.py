"""Published configs: their models have as many parameters as their publishers say."""

import math
from pathlib import Path

import jax
import pytest
from jax.sharding import AbstractMesh, AxisType

from launch.model_workloads import phases
from models import pretrained
from models.errors import ConfigError, ModelsError
from models.published.table import PUBLISHED, RECORDS
from neuronjax import estimate

REFUSED = [name for name, record in RECORDS.items() if record.refused is not None]
BUILT = [name for name, record in RECORDS.items() if record.refused is None]


def test_every_record_says_where_it_comes_from() -> None:
    assert len(BUILT) >= 120
    assert all(record.source for record in RECORDS.values())


@pytest.mark.parametrize("name", BUILT)
def test_parameters_are_as_many_as_published(name: str) -> None:
    """Each model is built from shapes; batch norms' statistics do not count."""
    architecture, config, _ = pretrained.describe(Path(name))
    assert config == pretrained.config(name)
    _, parameters = architecture.abstract(config)
    total = sum(
        math.prod(leaf.shape)
        for path, leaf in parameters.items()
        if not path.endswith((".mean", ".variance"))
    )
    assert total > 0
    assert RECORDS[name].parameters in (None, total)


FIRST = {pretrained.describe(Path(name)).architecture.name: name for name in reversed(BUILT)}
"""The first name of each architecture."""


@pytest.mark.slow
@pytest.mark.parametrize("name", FIRST.values())
def test_each_architecture_is_estimated(name: str) -> None:
    mesh = AbstractMesh((2,), ("data",), axis_types=(AxisType.Auto,))
    for phase in phases(name):
        made = phase.make(mesh=mesh, batch=2, layers=1)
        found = estimate(made["fn"], *made["arguments"], target="trn2.3xlarge", mesh="data=2")
        assert found.step_ns > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", BUILT)
def test_every_phase_is_traced(name: str) -> None:
    """The steps of which estimates are made, with the batch split in two."""
    mesh = AbstractMesh((2,), ("data",), axis_types=(AxisType.Auto,))
    for phase in phases(name):
        made = phase.make(mesh=mesh, batch=2, layers=phase.depths[0])
        assert jax.tree.leaves(jax.eval_shape(made["fn"], *made["arguments"]))


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_says_why(name: str) -> None:
    with pytest.raises(ModelsError) as error:
        pretrained.config(name)
    assert (RECORDS[name].refused or "") in str(error.value)


def test_other_names_are_refused() -> None:
    with pytest.raises(ConfigError, match="'nobody/nothing' is unknown; choose one of meta-llama"):
        pretrained.config("nobody/nothing")


def test_a_name_holds_fields_of_the_one_it_is_like() -> None:
    small, large = (PUBLISHED[f"meta-llama/Meta-Llama-3-{size}"] for size in ("8B", "70B"))
    assert small["vocab_size"] == large["vocab_size"]
    assert (small["hidden_size"], large["hidden_size"]) == (4096, 8192)
