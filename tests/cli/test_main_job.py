"""The training job of this repository would compile for the device, with one of its four blocks,
which are alike."""

from __future__ import annotations

import json
import os
from pathlib import Path

from tests import forked


def test_training_breaks_no_rule(tmp_path: Path) -> None:
    """With the generator that AWS recommends; JAX's default, Threefry, is warned of."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("NEURON", "JAX", "XLA"))
    }
    lint = ["-m", "neuronjax.cli", "lint", "--severity=note", "--format=json"]
    job = ["-m", "launch.train", "--steps=1", "--eval_every=1", "--num_layers=1", "--batch_size=8"]
    job.append(f"--checkpoint_dir={tmp_path}")
    environment["JAX_DEFAULT_PRNG_IMPL"] = "rbg"
    done = forked.run([*lint, *job], env=environment, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert report["findings"] == []
    assert report["target"] == "trn2.3xlarge (LNC 2)"
    assert report["programs"] > 3
    assert "held-out loss 0.0000" in done.stderr
