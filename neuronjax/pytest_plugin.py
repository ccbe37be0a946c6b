"""A pytest plugin for tests of NKI kernels. In ``conftest.py``::

    pytest_plugins = ["neuronjax.pytest_plugin"]

Then `import nki` finds `neuronjax.nki`, unless another package is installed, and tests that take
`nki_target` run once for each of ``--nki_targets`` (default: trn2)::

    def test_softmax(nki_target):
        np.testing.assert_allclose(nki_target.run(softmax, X), expected, rtol=1e-5)
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
import pytest

from neuronjax import nki_imports
from neuronjax.lazy import Lazy

if TYPE_CHECKING:
    from neuronjax import nki
    from neuronjax.emulate import core
else:
    nki, core = Lazy("neuronjax.nki"), Lazy("neuronjax.emulate.core")

_OVERRIDE = "NEURON_PLATFORM_TARGET_OVERRIDE"

nki_imports.allow()


@dataclass(frozen=True)
class NkiTarget:
    """Runs kernels for one machine."""

    #: Such as `trn2`.
    name: str

    def run(self, kernel: nki.Kernel, *arguments: Any, **keywords: Any) -> Any:
        """What the kernel returns for numpy arrays, after a run in which transfers end as late as
        possible and one in which engines take turns; arrays that it writes to have their values.

        Raises:
          AssertionError: the results differ; a NeuronError: the chip would refuse the kernel, or a
            run found a fault, such as a race, with the kernel's line.
        """
        copied, named = copy.deepcopy((arguments, keywords))
        late = core.DataflowOrder(seed=0, adversarial=True)
        others = nki.simulate(kernel, late, self.name)(*copied, **named)
        results = nki.simulate(kernel, core.ProgramOrder(), self.name)(*arguments, **keywords)
        jax.tree.map(np.testing.assert_array_equal, others, results)
        return results

    def time_ns(self, kernel: nki.Kernel, *arguments: Any, **keywords: Any) -> float:
        """The time of one run."""
        return nki.benchmark(kernel, *arguments, target=self.name, **keywords).total_ns


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("neuronjax").addoption(
        "--nki_targets", default="trn2", help="targets of kernels, such as trn2,trn3"
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "nki_target" in metafunc.fixturenames:
        targets = metafunc.config.getoption("nki_targets").split(",")
        metafunc.parametrize("nki_target", targets, indirect=True)


@pytest.fixture
def nki_target(request: pytest.FixtureRequest) -> Iterator[NkiTarget]:
    """Runs kernels; those that the test calls as functions are for the same machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(_OVERRIDE, request.param)
        yield NkiTarget(request.param)
