"""A kernel whose Python never ends, in the main thread and in another."""

from __future__ import annotations

from pathlib import Path

from tests.conftest import RunPython

KERNEL = """
import numpy as np
from neuronjax import nki
from neuronjax.nki import language as nl

@nki.jit
def endless(x):
    number = 0
    while True:
        number += 1

@nki.jit
def copied(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    nl.store(out, nl.load(x))
    return out
"""

CODE = """
import threading
import numpy as np
from kernels import copied, endless
from neuronjax import nki
from neuronjax.errors import KernelError
from neuronjax.nki import endless as watching

watching.PATIENCE_SECONDS = 0.3
x = np.ones((128, 4), np.float32)

def run():
    try:
        nki.simulate(endless)(x)
    except KernelError as error:
        print(error)

run()
other = threading.Thread(target=run)
other.start()
other.join()
print(nki.simulate(copied)(x).sum())
"""


def test_a_kernel_that_never_ends(run_python: RunPython, tmp_path: Path) -> None:
    (tmp_path / "kernels.py").write_text(KERNEL)
    done = run_python(CODE, {"PYTHONPATH": str(tmp_path)}, timeout=60)
    *errors, then = done.stdout.splitlines()
    assert len(errors) == 2
    for error in errors:
        line = error.split(":")[1]
        assert f"{tmp_path / 'kernels.py'}:{line}: endless has computed for 0.3 s" in error
        assert KERNEL.splitlines()[int(line) - 1].strip() in ("while True:", "number += 1")
    assert then == "512.0"
