"""The decoder that comes with the package, by its sizes: what a step multiplies and holds."""

from __future__ import annotations

import json

import pytest

from neuronjax import workloads
from neuronjax.cli import main
from neuronjax.planning.tracing import abstract_mesh

SIZES = {"depth": 2, "dim": 256, "hidden": 512, "heads": 4, "kv_heads": 2, "head_dim": 64}
VOCAB, BATCH, CONTEXT = 1024, 3, 128
LAYER = 256 * 64 * (4 + 2 + 2) + 4 * 64 * 256 + 3 * 256 * 512
"""Weights of the products of a layer."""


def estimate(capsys: pytest.CaptureFixture[str], function: str, *given: str) -> dict[str, float]:
    changed = [f"--set={name}={size}" for name, size in {**SIZES, "vocab": VOCAB}.items()]
    arguments = ["estimate", f"neuronjax.workloads:{function}", *changed, "--format=json", *given]
    assert main.main([*arguments, f"--batch={BATCH}"]) == 0
    found: dict[str, float] = json.loads(capsys.readouterr().out)
    return found


def test_a_token_reads_every_weight_and_its_cache(capsys: pytest.CaptureFixture[str]) -> None:
    found = estimate(capsys, "decode", f"--set=context={CONTEXT}", "--mesh=model=1")
    products = BATCH * 2 * (2 * LAYER + 256 * VOCAB)
    attention = BATCH * 2 * 2 * 2 * 4 * 64 * CONTEXT
    assert found["model_flops"] == products + attention
    assert found["tokens"] == BATCH
    weights = 2 * (2 * (LAYER + 2 * 256) + 2 * 256 * VOCAB + 256)
    caches = 2 * 2 * 2 * BATCH * CONTEXT * 2 * 64
    assert found["memory_bytes"] > weights + caches


@pytest.mark.slow
def test_training_splits_over_both_axes(capsys: pytest.CaptureFixture[str]) -> None:
    given = ("--set=sequence=128", "--mesh=data=1,model=2", "--target=trn2.3xlarge")
    found = estimate(capsys, "train", *given)
    assert found["tokens"] == 128 * BATCH
    assert found["network_bytes"] > 0
    whole = 3 * 2 * (2 * LAYER + 256 * VOCAB) * 128 * BATCH
    assert whole / 2 < found["model_flops"] < whole


@pytest.mark.parametrize("parts", [3, 5, 16])
def test_padded_sizes_are_the_least_that_the_mesh_divides(parts: int) -> None:
    mesh = abstract_mesh({"model": parts})
    sizes = {"hidden": 1000, "heads": 12, "kv_heads": 4, "vocab": 50_257}
    made = workloads.decode(mesh, depth=1, context=16, pad=True, **sizes)
    weights, caches, *_ = made["arguments"]
    layer = weights["layers"][0]
    kv_heads = layer["keys"].shape[1]
    padded = {
        "hidden": layer["up"].shape[1], "kv_heads": kv_heads, "vocab": weights["head"].shape[1],
    }  # fmt: skip
    for name, size in padded.items():
        assert size % parts == 0
        assert size - parts < max(sizes[name], parts if name == "kv_heads" else 0) <= size
    heads = layer["queries"].shape[1]
    assert heads % kv_heads == 0
    assert 12 <= heads < 12 + kv_heads
    assert caches[0][0].shape[2] == kv_heads
    assert "vocab padded from 50257 to" in " ".join(made["assumed"])
    assert not workloads.decode(mesh, depth=1, context=16)["assumed"]
