"""More layers, more tokens, a larger batch: an estimate is never shorter for more work.

Programs of other shapes are scheduled otherwise, so less data may be a little slower than more, as
`ANOMALY` says; a deeper model has all that a shallower one has. Data is that of 2 tokens and more:
between two products, a single row changes partitions through memory.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st

import neuronjax
from models.resnet.config import ResNetConfig
from models.resnet.model import ResNet
from neuronjax.planning.estimate import of_factory, setting_of
from neuronjax.planning.tracing import abstract_mesh
from neuronjax.planning.workload import load
from tests.timing.programs import ANOMALY

WIDTH = 128
Layer = Callable[..., jax.Array]


def bf16(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.bfloat16)


def feed_forward(x: jax.Array, up: jax.Array, down: jax.Array) -> jax.Array:
    return x + jax.nn.silu(x @ up) @ down


def attention(x: jax.Array, query: jax.Array, out: jax.Array) -> jax.Array:
    probabilities = jax.nn.softmax(x @ query @ x.mT, axis=-1)
    return x + probabilities @ x @ out


def convolution(x: jax.Array, first: jax.Array, second: jax.Array) -> jax.Array:
    """Over tokens, of three of them at a time."""
    convolve = functools.partial(
        jax.lax.conv_general_dilated,
        window_strides=(1,),
        padding="SAME",
        dimension_numbers=("NWC", "WIO", "NWC"),
    )
    return jax.nn.relu(x + convolve(jax.nn.relu(convolve(x, first)), second))


SQUARE = bf16(WIDTH, WIDTH)
TAPS = bf16(3, WIDTH, WIDTH)
FAMILIES: dict[str, tuple[Layer, tuple[jax.ShapeDtypeStruct, ...]]] = {
    "feed-forward": (feed_forward, (bf16(WIDTH, 4 * WIDTH), bf16(4 * WIDTH, WIDTH))),
    "attention": (attention, (SQUARE, SQUARE)),
    "convolution": (convolution, (TAPS, TAPS)),
}


@functools.cache
def time(family: str, target: str, batch: int, tokens: int, layers: int) -> float:
    """Returns the time of a forward pass, ns."""
    layer, weights = FAMILIES[family]

    def run(weights: list[tuple[jax.Array, ...]], x: jax.Array) -> jax.Array:
        for each in weights:
            x = layer(x, *each)
        return x

    x = bf16(batch, tokens, WIDTH)
    return neuronjax.estimate(run, [weights] * layers, x, target=target).step_ns


FEW = settings(max_examples=3, deadline=None)
TOKENS = st.one_of(st.integers(2, 8), st.integers(8, 256))
targets = st.sampled_from(["trn1.2xlarge", "trn2.3xlarge"])


@pytest.mark.parametrize("family", FAMILIES)
@FEW
@given(targets, st.integers(1, 4), st.integers(1, 3))
def test_deeper_models_are_slower(family: str, target: str, batch: int, layers: int) -> None:
    assert time(family, target, batch, 64, layers + 1) > time(family, target, batch, 64, layers)


@pytest.mark.slow
def test_the_newer_chip_decodes_no_slower() -> None:
    """A token of an 8B model on 32 cores: products so small that two cores hardly share them."""
    factory = load("launch.workloads:llama_decode", {"model": "8b"})
    mesh = abstract_mesh({"model": 32})
    older, newer = (
        of_factory(factory, setting_of(target, None), mesh, depths=(2, 3)).step_ns
        for target in ("trn1.32xlarge", "trn2.48xlarge")
    )
    assert newer <= older


@pytest.mark.slow
@pytest.mark.parametrize("stage", [1, 3])
def test_a_further_block_in_a_stage_is_never_faster(stage: int) -> None:
    """Of a residual network: its kernels are many, and of four sizes, so they are joined anew."""
    depths = [2, 2, 2, 2]
    depths[stage] += 1
    assert resnet_time((2, 2, 2, 2)) <= resnet_time(tuple(depths)) * ANOMALY


@functools.cache
def resnet_time(depths: tuple[int, ...]) -> float:
    """Returns the time that the classes of an image take, ns."""
    config = ResNetConfig(
        stage_channels=(64, 128, 256, 512), depths=depths, bottleneck=False, num_labels=10
    )
    model = nnx.eval_shape(lambda: ResNet(config, rngs=nnx.Rngs(0)))
    model.eval()
    graph, weights = nnx.split(model)
    pixels = jax.ShapeDtypeStruct((1, 224, 224, 3), jnp.float32)

    def classify(weights: nnx.State, pixels: jax.Array) -> jax.Array:
        return nnx.merge(graph, weights)(pixels)

    flags = "--auto-cast=matmult --auto-cast-type=bf16"
    return neuronjax.estimate(classify, weights, pixels, target="inf2.xlarge", flags=flags).step_ns


@pytest.mark.parametrize("family", FAMILIES)
@FEW
@given(targets, st.integers(1, 4), TOKENS, st.integers(0, 4), st.integers(0, 256))
def test_more_data_is_never_faster(
    family: str, target: str, batch: int, tokens: int, further: int, longer: int
) -> None:
    more = time(family, target, batch + further, tokens + longer, 1)
    assert time(family, target, batch, tokens, 1) <= more * ANOMALY
