"""`import nki` where it was asked for, in processes of their own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import RunPython

KERNELS = """
import nki
import nki.language as nl
import neuronxcc.nki.isa
from nki.compiler import CompileConfig
from nki.isa import constants
from nki.isa.constants import oob_mode
from nki.typing import mutable_tensor


@nki.jit(mode="auto", compile_config=CompileConfig(barrier_check=True))
def doubled(x: mutable_tensor, dtype: nki.dtype = nl.float32):
    assert isinstance(dtype, nki.dtype) and constants.oob_mode is oob_mode
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    nl.store(out, nl.multiply(nl.load(x), 2.0))
    return out
"""
SCRIPT = """
import numpy as np
import jax
from kernels import doubled
x = np.ones((128, 2), np.float32)
print(jax.devices()[0].platform, doubled(x).sum(), doubled.trace(x))
"""
TESTS = """
import numpy as np
from kernels import doubled

X = np.ones((128, 2), np.float32)

def test_doubled(nki_target):
    np.testing.assert_array_equal(nki_target.run(doubled, X), 2 * X)
    assert nki_target.time_ns(doubled, X) > 1_000
    assert {"trn1": "trainium1", "trn2": "trainium2"}[nki_target.name] in repr(doubled.trace(X))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "kernels.py").write_text(KERNELS)
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["neuronjax.pytest_plugin"]')
    (tmp_path / "test_kernels.py").write_text(TESTS)
    return tmp_path


def test_kernels_import_nki(start_python: RunPython) -> None:
    done = start_python(
        """
        import neuronjax
        try:
            import nki
        except ModuleNotFoundError:
            print("absent")
        neuronjax.nki.install(); neuronjax.nki.install()
        import nki
        import nki.collectives
        import nki.isa as nisa
        from nki import language as nl
        import neuronxcc.nki
        print(nki is neuronjax.nki, neuronxcc.nki is nki, nl.add.name, nisa.dma_copy.__name__)
        """
    )
    assert done.stdout.split() == ["absent", "True", "False", "add", "dma_copy"], done.stderr


def test_another_package_is_left_alone(start_python: RunPython, tmp_path: Path) -> None:
    (tmp_path / "nki.py").write_text("WHO = 'theirs'")
    done = start_python(
        f"""
        import sys
        sys.path.insert(0, {str(tmp_path)!r})
        from neuronjax.errors import ConfigurationError
        from neuronjax.nki import install
        try:
            install()
        except ConfigurationError as error:
            print("refused")
        import nki
        print(nki.WHO)
        """
    )
    assert done.stdout.split() == ["refused", "theirs"], done.stderr


def run(folder: Path, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *words], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_scripts_and_tests_find_it(folder: Path) -> None:
    shown = run(folder, "neuronjax", "run", "--target=trn1.2xlarge", "script.py")
    assert shown.startswith("neuron 512.0 doubled for trainium1, returns a tensor float32[128, 2]")
    shown = run(folder, "pytest", "-q", "--nki_targets=trn1,trn2", "-p", "no:cacheprovider")
    assert "2 passed" in shown
