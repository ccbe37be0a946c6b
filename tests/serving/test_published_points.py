"""What docs/serving.md says of published measurements is what launch.traffic says of them."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ENVIRONMENT, PROJECT, RunPython

ROW = re.compile(
    r"\| (?P<what>Llama[^|]+\| [^|]+) \| (?P<first>[\d.]+) ms, [^|]+ \| (?P<each>[\d.]+) ms, "
)
ROWS = {
    match["what"]: (match["first"], match["each"])
    for match in ROW.finditer((PROJECT / "docs" / "serving.md").read_text())
}
ONE = (
    *("--max_num_seqs=1", "--num_seqs_buckets=1", "--prefill_rows_buckets=1", "--block_size=32"),
    *("--num_requests=1", "--rates=1"),
)
INT8 = ("--model=8b", "--target=trn1.32xlarge", "--mesh=model=32", "--weights=int8")
LLAMA_70B = ("--model=70b", "--target=trn2.48xlarge", "--mesh=model=64")
# The rows of the page: machine and model; tokens of the prompt, of the answer, and of a text.
POINTS = {
    "Llama-3-8B INT8, trn1.32xlarge TP32 | 128 of 4096": (INT8, 128, 1024, 4096),
    "Llama-3-8B INT8, trn1.32xlarge TP32 | 4096 of 8192": (INT8, 4096, 1024, 8192),
    "Llama-3.3-70B BF16, trn2.48xlarge TP64 | 10,000 of 12,288": (LLAMA_70B, 10_000, 1500, 12_288),
}


def test_every_row_is_tried() -> None:
    assert set(ROWS) == set(POINTS)


@pytest.mark.slow
@pytest.mark.parametrize("what", POINTS)
def test_a_published_point(run_python: RunPython, tmp_path: Path, what: str) -> None:
    machine, prompt, answer, context = POINTS[what]
    chunk = -(-prompt // 1024) * 1024 if prompt > 1024 else prompt
    flags = [
        *(*machine, *ONE, f"--lengths={prompt}:{answer}", f"--max_model_len={context}"),
        *(f"--prefill_buckets={chunk}", f"--max_num_batched_tokens={chunk}"),
        *(f"--context_buckets={chunk},{context}", f"--out={tmp_path}"),
    ]
    (run,) = traffic(run_python, flags, tmp_path)["runs"]
    told = tuple(f"{1e3 * run[name][0]:.3g}" for name in ("ttft", "tpot"))
    assert told == ROWS[what]


def traffic(
    run_python: RunPython, flags: Sequence[str], folder: Path
) -> dict[str, list[dict[str, Any]]]:
    """What launch.traffic writes."""
    code = (
        "import runpy, sys; sys.argv[1:] = " + repr(list(flags)) + "\n"
        "runpy.run_module('launch.traffic', run_name='__main__', alter_sys=True)"
    )
    done = run_python(code, dict.fromkeys(ENVIRONMENT), timeout=1500)
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, list[dict[str, Any]]] = json.loads((folder / "traffic.json").read_text())
    return found
