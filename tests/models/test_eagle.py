"""Heads on a decoder's outputs against an FP64 reference, from files in the paper's layout."""

import json
from pathlib import Path

import jax
import numpy as np
import pytest
from jax.sharding import Mesh
from safetensors.numpy import save_file

from models.decoder.eagle import load_eagle, with_ends
from models.errors import ConfigError, WeightsError
from models.parameters import merge
from tests.models import reference
from tests.models.test_decoder import SMALL, TOKENS, build

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 32,
    "num_hidden_layers": 1,
    "hidden_size": 16,
    "intermediate_size": 20,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "max_position_embeddings": 16,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}
LAYER = "layers.0"
SHAPES = {
    "fc.weight": (16, 32),
    "embed_tokens.weight": (32, 16),  # many files have it; it is the decoder's
    f"{LAYER}.self_attn.q_proj.weight": (16, 16),
    f"{LAYER}.self_attn.k_proj.weight": (8, 16),
    f"{LAYER}.self_attn.v_proj.weight": (8, 16),
    f"{LAYER}.self_attn.o_proj.weight": (16, 16),
    f"{LAYER}.mlp.gate_proj.weight": (20, 16),
    f"{LAYER}.mlp.up_proj.weight": (20, 16),
    f"{LAYER}.mlp.down_proj.weight": (16, 20),
    f"{LAYER}.post_attention_layernorm.weight": (16,),
}


def write(directory: Path, **extra: tuple[int, ...]) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    tensors = {
        name: (0.4 * rng.normal(size=shape)).astype(np.float32)
        for name, shape in {**SHAPES, **extra}.items()
    }
    save_file(tensors, directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps(CONFIG))
    return tensors


def expected(tensors: dict[str, np.ndarray], tokens: np.ndarray, outputs: np.ndarray, table):  # type: ignore[no-untyped-def]
    """The outputs [T - 1, D] after all tokens but the first."""
    t = {name.removeprefix(f"{LAYER}."): x.astype(np.float64) for name, x in tensors.items()}

    def heads(name: str, count: int) -> np.ndarray:
        return t[f"self_attn.{name}_proj.weight"].T.reshape(16, count, 8)

    attention = {"query": heads("q", 2), "key": heads("k", 1), "value": heads("v", 1)}
    attention["output"] = t["self_attn.o_proj.weight"].T.reshape(2, 8, 16)
    mlp = {name: t[f"mlp.{name}_proj.weight"].T for name in ("gate", "up", "down")}
    sizes = build(num_heads=2, num_kv_heads=1)[0]
    x = np.concatenate([table[tokens[1:]], outputs[:-1]], axis=1) @ t["fc.weight"].T
    x = x + t.get("fc.bias", 0)
    normed = x
    if "input_layernorm.weight" in t:
        normed = reference.rms_norm(x, t["input_layernorm.weight"], 1e-5)
    x = x + reference.attention(normed, attention, sizes)
    normed = reference.rms_norm(x, t["post_attention_layernorm.weight"], 1e-5)
    return x + reference.mlp(normed, mlp)


@pytest.mark.parametrize(
    "extra",
    [{}, {"fc.bias": (16,), f"{LAYER}.input_layernorm.weight": (16,)}],
    ids=["paper", "more"],
)
def test_a_head_is_the_fp64_reference(
    tmp_path: Path, devices: list[jax.Device], extra: dict[str, tuple[int, ...]]
) -> None:
    tensors = write(tmp_path, **extra)
    config, _, decoder = build()
    mesh = Mesh(np.array(devices[:1]), ("model",))
    graph, own = load_eagle(tmp_path, config, mesh)
    parameters = with_ends(own, jax.device_put(decoder, devices[0]))
    outputs = np.random.default_rng(1).normal(size=(*TOKENS.shape, 16)).astype(np.float32)
    got = jax.jit(lambda p, *arguments: merge(graph, p)(*arguments))(parameters, TOKENS, outputs)
    table = np.asarray(decoder["embedding.table"], np.float64)
    for row in range(len(TOKENS)):
        wanted = expected(tensors, TOKENS[row], outputs[row].astype(np.float64), table)
        np.testing.assert_allclose(got[row, 1:], wanted, rtol=1e-5, atol=3e-5)


def test_what_does_not_suit_is_refused(tmp_path: Path) -> None:
    mesh = Mesh(np.array(jax.devices()[:1]), ("model",))
    write(tmp_path)
    with pytest.raises(
        ConfigError, match=r"the EAGLE head has a width of 16, but the decoder has 24"
    ):
        load_eagle(tmp_path, build(dim=24)[0], mesh)
    write(tmp_path, **{"layers.1.mlp.up_proj.weight": (20, 16)})
    with pytest.raises(WeightsError, match=r"tensors without a parameter .*layers\.1"):
        load_eagle(tmp_path, build(**SMALL)[0], mesh)
