"""The same published config twice: PyTorch's way to write the model, and that of ``models/``.

``python -m tests.torch.survey.twice`` estimates both and renews the table of docs/pytorch.md.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import neuronjax
from launch import model_workloads
from models.published.table import PUBLISHED
from neuronjax.planning.tracing import abstract_mesh
from neuronjax.torch import by_name
from tests.torch.survey.run import commit

TARGET = "trn2.48xlarge"
TABLE = Path(__file__).with_name("twice.json")

CASES: Mapping[str, tuple[str, str, int, int | None]] = {
    "BERT-base, 8 rows of 128 tokens": ("google-bert/bert-base-uncased", "forward", 8, 128),
    "ViT-B/16, 8 images": ("google/vit-base-patch16-224", "forward", 8, None),
    "Llama-3-8B, a token after 2,048": ("meta-llama/Meta-Llama-3-8B", "decode", 1, 2048),
    "SDXL's U-Net, 1,024 × 1,024 pixels": (
        "stabilityai/stable-diffusion-xl-base-1.0/unet", "forward", 1, None,
    ),
    "ResNet-50, 8 images": ("microsoft/resnet-50", "forward", 8, None),
}  # fmt: skip
"""Name -> a published config, the phase, rows, and tokens of a text."""


def main() -> None:
    """Estimates every case and writes the table."""
    rows = {}
    for name, case in CASES.items():
        theirs, ours = _estimates(*case)
        rows[name] = {"torch_ns": round(theirs), "models_ns": round(ours), "commit": commit()}
        print(name, json.dumps(rows[name]), f"{theirs / ours:.2f}", flush=True)
    TABLE.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n")


def _estimates(name: str, phase: str, rows: int, length: int | None) -> tuple[float, float]:
    """The times of a phase of a config in PyTorch and in ``models/``, in ns."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(dict(PUBLISHED[name])))
        (ours,) = [one for one in model_workloads.phases(folder, length) if one.name == phase]
        (theirs,) = [one for one in by_name.phases(folder, length) if one.name == phase]
        return _estimate(theirs, rows).device_ns, _estimate(ours, rows).device_ns


def _estimate(phase: Any, rows: int) -> neuronjax.Estimate:
    made = phase.make(mesh=abstract_mesh(None), batch=rows)
    depth = {"layers": made["layers"], "depths": phase.depths} if "layers" in made else {}
    if depth:
        return neuronjax.estimate(partial(phase.make, batch=rows), target=TARGET, **depth)
    return neuronjax.estimate(made["fn"], *made["arguments"], target=TARGET)


if __name__ == "__main__":
    main()
