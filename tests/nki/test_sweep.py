"""Times of a kernel over the values of its parameters."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from neuronjax import nki
from neuronjax.errors import KernelError
from neuronjax.nki import isa as nisa
from neuronjax.nki import language as nl
from neuronjax.nki.tensor import Tensor
from tests.nki.kernels import loaded

X = np.zeros((256, 64), np.float32)


@nki.jit
def doubled(x: Tensor, rows: int, engine: str = "vector") -> Tensor:
    assert x.shape[0] % rows == 0, f"rows must divide {x.shape[0]}"
    out = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
    for part in nl.affine_range(x.shape[0] // rows):
        place = nl.ds(part * rows, rows)
        result = loaded(x[place])
        chosen = getattr(nisa.engine, engine)
        nisa.tensor_scalar(result, result, nl.multiply, 2.0, engine=chosen)
        nisa.dma_copy(out[place], result)
    return out


def test_every_combination_has_a_time_or_a_reason(tmp_path: Path) -> None:
    over = {"rows": [32, 96, 128, 256], "engine": ["vector", "scalar"]}
    swept = nki.sweep(doubled, X, over=over)
    assert [point.values for point in swept.points] == [
        {"rows": rows, "engine": engine} for rows in over["rows"] for engine in over["engine"]
    ]
    alone = nki.benchmark(doubled, X, 128, "vector").total_ns
    assert swept.points[4].total_ns == alone
    is_refused = [False, False, True, True]
    assert [point.time is None for point in swept.points] == is_refused * 2
    assert swept.points[2].reason == "rows must divide 256"
    assert "ends at partition 256; allowed: 128" in swept.points[6].reason
    assert swept.best is min(swept.timed, key=lambda point: point.total_ns)
    lines = str(swept).splitlines()
    assert len(lines) == 2 + len(swept.points)
    (marked,) = (line for line in lines if line.strip().startswith("*"))
    assert marked.split()[1:3] == [
        f"rows={swept.best.values['rows']},", f"engine={swept.best.values['engine']}",
    ]  # fmt: skip
    swept.write(tmp_path)
    assert (tmp_path / "sweep.txt").read_text() == f"{swept}\n"
    picture = ElementTree.parse(tmp_path / "sweep.svg").getroot()
    widths = [
        float(bar.get("width", 0)) for bar in picture.iter("{http://www.w3.org/2000/svg}rect")
    ]
    times = [point.total_ns for point in swept.timed]
    np.testing.assert_allclose(
        np.divide(widths, max(widths)), np.divide(times, max(times)), atol=1e-3
    )


def test_what_cannot_be_swept() -> None:
    with pytest.raises(
        KernelError, match=r"doubled has no parameter 'row'; it has x, rows, engine"
    ):
        nki.sweep(doubled, X, over={"row": [1]})
    with pytest.raises(KernelError, match="doubled: `over` has no values"):
        nki.sweep(doubled, X, over={"rows": []})
    with pytest.raises(KernelError, match="doubled cannot run: rows must divide"):
        nki.sweep(doubled, X, over={"rows": [96]}).best  # noqa: B018
