"""Mesh flags, the default mesh, and refusals that name the axis."""

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

from launch.errors import MeshError
from launch.meshes import (
    batch_sharding,
    default_mesh,
    fitting_mesh,
    make_mesh,
    parameter_shardings,
    parse_mesh,
    state_shardings,
)
from models.decoder.config import DecoderConfig
from models.parameters import axis_names_of
from models.registry import ARCHITECTURES

LLAMA = ARCHITECTURES["LlamaForCausalLM"]


def mesh_of(data: int, model: int) -> Mesh:
    devices = np.array(jax.devices("cpu")[: data * model]).reshape(data, model)
    return Mesh(devices, ("data", "model"))


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("data=4,model=2", {"data": 4, "model": 2}),
        ("model=2, data=4", {"data": 4, "model": 2}),
        ("data=8", {"data": 8, "model": 1}),
    ],
)
def test_mesh_text(text: str, sizes: dict[str, int]) -> None:
    assert parse_mesh(text) == sizes


@pytest.mark.parametrize("text", ["", "4x2", "data=0", "data=-1", "data=a", "pipe=2", "data=1.5"])
def test_unreadable_mesh_is_refused(text: str) -> None:
    with pytest.raises(MeshError, match="Write it as data=4,model=2"):
        parse_mesh(text)


@pytest.mark.parametrize(
    ("devices", "sizes"),
    [(1, (1, 1)), (2, (2, 1)), (4, (2, 2)), (8, (4, 2)), (64, (32, 2))],
)
def test_default_mesh_of_the_default_run(devices: int, sizes: tuple[int, int]) -> None:
    mesh = default_mesh(devices, num_kv_heads=2, batch_size=32)
    assert (mesh["data"], mesh["model"]) == sizes


@pytest.mark.parametrize(
    ("kv_heads", "vocab_size", "sizes"),
    [
        (8, 50_265, (4, 1)),  # RoBERTa's vocabulary is odd
        (8, 30_522, (2, 2)),
        (1, 262_144, (4, 1)),  # Gemma 3 1B has one key-value head
    ],
)
def test_default_mesh_does_not_split_what_is_odd(
    kv_heads: int, vocab_size: int, sizes: tuple[int, int]
) -> None:
    mesh = default_mesh(4, kv_heads, batch_size=4, vocab_size=vocab_size)
    assert (mesh["data"], mesh["model"]) == sizes


def test_the_default_mesh_looks_at_the_width_of_feed_forward_blocks() -> None:
    config = DecoderConfig(hidden_dim=71, num_kv_heads=2)
    assert fitting_mesh(4, config, batch_size=4) == {"data": 4, "model": 1}


def test_no_default_mesh_says_what_to_change() -> None:
    with pytest.raises(MeshError, match=r"no mesh of 7 devices fits a batch of 32, 2 key"):
        default_mesh(7, num_kv_heads=2, batch_size=32)


def test_mesh_of_another_size_than_the_devices_is_refused() -> None:
    count = jax.device_count()
    with pytest.raises(MeshError, match=rf"needs {3 * count} devices, but .* has {count}"):
        make_mesh({"data": 3, "model": count})


def test_axis_that_does_not_divide_is_named() -> None:
    graph, parameters = LLAMA.abstract(DecoderConfig(num_kv_heads=2, num_layers=1))
    with pytest.raises(MeshError, match=r"splits kv_heads over model=4.*kv_heads=2 of blocks\.0"):
        parameter_shardings(mesh_of(1, 4), parameters, axis_names_of(graph, parameters))


@pytest.mark.parametrize(("vocab_size", "axes"), [(64, ("stage", "model")), (66, "model")])
def test_stages_split_a_vocabulary_that_they_divide(vocab_size: int, axes: object) -> None:
    graph, parameters = LLAMA.abstract(DecoderConfig(vocab_size=vocab_size, num_layers=1))
    mesh = Mesh(np.array(jax.devices("cpu")[:4]).reshape(2, 2), ("stage", "model"))
    shardings = parameter_shardings(mesh, parameters, axis_names_of(graph, parameters))
    assert shardings["embedding.table"].spec[0] == axes


def test_batch_that_does_not_divide_is_refused() -> None:
    with pytest.raises(MeshError, match=r"--batch_size=6 is not a multiple of data=4"):
        batch_sharding(mesh_of(4, 2), 6)


def test_moments_are_split_like_their_weights() -> None:
    graph, parameters = LLAMA.abstract(DecoderConfig(num_layers=1))
    mesh = mesh_of(4, 2)
    by_path = parameter_shardings(mesh, parameters, axis_names_of(graph, parameters))
    shardings = state_shardings(
        mesh, ({"mu": parameters}, parameters["norm.scale"]), parameters, by_path
    )
    assert shardings[0]["mu"] == by_path
    assert by_path["blocks.0.mlp.up.kernel"].spec == PartitionSpec(None, "model")
    assert shardings[1].spec == PartitionSpec()
