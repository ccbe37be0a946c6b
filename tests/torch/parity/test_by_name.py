"""Models from their config.json, functions of files, and exported programs, on the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
import pytest
import torch
from transformers import AutoConfig, StaticCache

from neuronjax.cli import main as cli
from neuronjax.planning.tracing import abstract_mesh
from neuronjax.torch import by_name, diffusion, to_jax
from tests.torch.parity.decoders import decoder
from tests.torch.survey.diffusion import DIFFUSERS
from tests.torch.survey.tiny import shrink

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a command line; gives its exit code and both outputs."""
    monkeypatch.setattr("jax.config.update", lambda *_: None)  # this process has its platforms

    def call(*arguments: object) -> tuple[int, str, str]:
        code = cli.main([*map(str, arguments)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def test_one_token_after_a_static_cache() -> None:
    """The logits and the cache are those of PyTorch, and the caches passed in stay as they are."""
    module, ids = decoder("llama", rows=2)
    cache = StaticCache(config=module.config, max_cache_len=16)
    module(input_ids=ids, cache=cache, use_cache=True)
    before = jax.tree.map(lambda leaf: leaf.clone(), cache.layers[0].keys)
    token = torch.randint(3, 60, (2, 1))
    program = to_jax(module, input_ids=token, cache=cache, use_cache=True)
    got = jax.jit(program)(program.state, input_ids=token.numpy(), cache=program.arrays(cache))
    assert torch.equal(cache.layers[0].keys, before)
    expected = module(input_ids=token, cache=cache, use_cache=True)
    np.testing.assert_allclose(got.logits, expected.logits.detach(), atol=1e-5)
    for mine, theirs in zip(got.cache.layers, cache.layers, strict=True):
        np.testing.assert_allclose(mine.keys, theirs.keys.detach(), atol=1e-5)
        assert int(mine.cumulative_length) == int(theirs.cumulative_length) == 9


def test_fit_of_an_architecture_that_models_lacks(run: Run, tmp_path: Path) -> None:
    config = shrink(AutoConfig.for_model("ernie4_5"))
    config.architectures = ["Ernie4_5ForCausalLM"]
    config.num_hidden_layers = 8
    config.save_pretrained(tmp_path)
    code, text, errors = run(
        "fit", tmp_path, "--targets=trn2.3xlarge", "--mesh=data=1,model=2", "--length=32",
        "--phases=decode", "--format=json",
    )  # fmt: skip
    assert code == 0, errors
    (decode,) = json.loads(text)
    (estimate,) = (point["estimate"] for point in decode["points"])
    assert any("built by transformers" in line for line in estimate["assumed"])
    assert any("8 identical layers, extrapolated from 3 and 4" in a for a in estimate["assumed"])
    caches = 8 * 2 * 32 * config.num_key_value_heads * config.head_dim * 2
    assert estimate["memory"]["cache"] == pytest.approx(caches / 2, rel=0.05)


@pytest.mark.parametrize("name", sorted(DIFFUSERS.keys() - {"UVit2DModel"}))
def test_models_of_diffusers(tmp_path: Path, name: str) -> None:
    """What is made up as inputs is taken by diffusers' own model, and gives the same shapes."""
    fields = {"_class_name": name, **DIFFUSERS[name][0]}
    (tmp_path / "config.json").write_text(json.dumps(fields))
    (phase,) = by_name.phases(str(tmp_path))
    made = phase.make(mesh=abstract_mesh(None), batch=2, dtype="float32")
    with torch.device("meta"):
        module = diffusion.make_module(fields, torch.float32)
        expected, *_ = module(**diffusion.make_inputs(module, 2, None, torch.float32))
    got, *_ = jax.tree.leaves(jax.eval_shape(made["fn"], *made["arguments"]))
    assert got.shape == expected.shape


def test_fit_of_a_model_of_diffusers(run: Run, tmp_path: Path) -> None:
    fields = {"_class_name": "SD3Transformer2DModel", **DIFFUSERS["SD3Transformer2DModel"][0]}
    (tmp_path / "config.json").write_text(json.dumps(fields))
    code, text, errors = run(
        "fit", tmp_path, "--targets=trn2.3xlarge", "--mesh=data=1", "--length=64", "--format=json"
    )
    assert code == 0, errors
    (forward,) = json.loads(text)
    (estimate,) = (point["estimate"] for point in forward["points"])
    assert any("built by diffusers" in line for line in estimate["assumed"])


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"model_type": "nowhere"}, "the model_type 'nowhere', which transformers"),
        ({"_class_name": "NowhereModel"}, "has no model 'NowhereModel'"),
        ({"_class_name": "DDIMScheduler"}, "has no model 'DDIMScheduler'"),
        (
            {"_class_name": "UVit2DModel", **DIFFUSERS["UVit2DModel"][0]},
            "what diffusers' UVit2DModel is given as encoder_hidden_states, input_ids",
        ),
        ({"model_type": "own", "auto_map": {"AutoModel": "m.M"}}, "code of its own (AutoModel)"),
    ],
)
def test_configs_that_nobody_knows(
    run: Run, tmp_path: Path, fields: dict[str, object], said: str
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(fields))
    code, _, errors = run("fit", tmp_path)
    assert code == 2
    assert said in errors


FILE = """
import torch
from neuronjax.torch import to_jax
model, x = torch.nn.Bilinear(64, 64, 32), torch.ones(8, 64)
def listed():
    return model, x, x
def exported():
    return model, (x, x)
def named():
    return model, {"input1": x, "input2": x}
def mixed():
    return model, (x,), {"input2": x}
def converted():
    return to_jax(model, x, input2=x)
"""


@pytest.mark.parametrize("function", ["listed", "exported", "named", "mixed", "converted"])
def test_functions_of_files(run: Run, tmp_path: Path, function: str) -> None:
    file = tmp_path / "mine.py"
    file.write_text(FILE)
    code, text, errors = run("estimate", f"torch:{file}:{function}")
    assert code == 0, errors
    assert "weights" in text


def test_functions_that_a_file_lacks(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(FILE)
    code, _, errors = run("estimate", f"torch:{file}:liste")
    assert code == 2
    assert "has no function 'liste'. Did you mean listed?" in errors


def test_exported_programs(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "program.pt2"
    module = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU())
    torch.export.save(torch.export.export(module, (torch.ones(8, 64),)), file)
    code, text, errors = run("estimate", file)
    assert code == 0, errors
    assert "Costliest kernels" in text
    file.write_bytes(b"nothing")
    code, _, errors = run("estimate", file)
    assert code == 2
    assert "no program of torch.export" in errors
