"""The laws of an encoder-decoder, from random weights."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from models.generate import Ending, generate
from models.parameters import Parameters, merge, split
from models.registry import ARCHITECTURES
from models.sampling import Sampling
from models.sharding import parameter_shardings
from models.weights.fields import Fields
from tests.models.parity.text_cases import T5, T5_1_1

NAME = "T5ForConditionalGeneration"
VERSIONS = {"1.0": T5, "1.1": T5_1_1}
RNG = np.random.default_rng(0)
SOURCE = RNG.integers(3, 96, (4, 9)).astype(np.int32)
REAL = np.arange(9) < np.array([[9], [5], [7], [9]])
TARGET = np.concatenate([np.zeros((4, 1)), RNG.integers(3, 96, (4, 9))], axis=1).astype(np.int32)
# Five blocks of FP32 roundings on logits of up to ten or so.
FP32 = {"rtol": 1e-5, "atol": 1e-4}


def build(version: str, dtype: str = "float32", **changes: object):
    architecture = ARCHITECTURES[NAME]
    values = {**VERSIONS[version], "initializer_factor": 1.5, **changes}
    config = replace(architecture.read_config(Fields(values, NAME)), dtype=dtype)
    return config, *split(architecture.build(config))


@jax.jit(static_argnums=0)
def run(graph: nnx.GraphDef, parameters: Parameters, target: jax.Array, **source: jax.Array):
    return merge(graph, parameters)(target, **source)


@pytest.fixture(scope="module", params=VERSIONS)
def model(request: pytest.FixtureRequest):
    return build(request.param)


def test_versions_differ_in_head_and_feed_forward() -> None:
    (_, _, old), (_, _, new) = build("1.0"), build("1.1")
    only_new = {name.split(".")[-2] for name in set(new) - set(old)}
    assert set(old) < set(new)
    assert only_new == {"gate", "head"}


@pytest.mark.parametrize("pieces", [(10,), (1,) * 10, (4, 1, 5)])
def test_cache_gives_the_same_logits(devices: list[jax.Device], model, pieces) -> None:
    _, graph, parameters = model
    parameters, target, source, real = jax.device_put(
        (parameters, TARGET, SOURCE, REAL), devices[0]
    )
    expected = run(graph, parameters, target, source=source, real=real)
    whole = merge(graph, parameters)
    cache = jax.jit(whole.init_cache, static_argnums=(0, 1))(4, 12, source=source, real=real)
    extend, start, got = jax.jit(whole.extend), 0, []
    for length in pieces:
        logits, cache = extend(target[:, start : start + length], cache, start)
        got.append(logits)
        start += length
    np.testing.assert_allclose(jnp.concatenate(got, axis=1), expected, **FP32)


def test_later_tokens_never_change_earlier_logits(model) -> None:
    _, graph, parameters = model
    before = run(graph, parameters, TARGET, source=SOURCE)
    for t in range(1, TARGET.shape[1]):
        changed = TARGET.copy()
        changed[:, t] = 3 + (changed[:, t] - 2) % 93
        after = run(graph, parameters, changed, source=SOURCE)
        np.testing.assert_array_equal(after[:, :t], before[:, :t])
        assert (np.asarray(after[:, t:]) != np.asarray(before[:, t:])).any(axis=(0, 2)).all()


def test_padding_of_the_source_changes_nothing(model) -> None:
    _, graph, parameters = model
    junk = np.random.default_rng(1).integers(3, 96, (4, 6)).astype(np.int32)
    padded = np.concatenate([SOURCE, junk], axis=1)
    real = np.broadcast_to(np.arange(15) < 9, padded.shape)
    got = run(graph, parameters, TARGET, source=padded, real=real)
    expected = run(graph, parameters, TARGET, source=SOURCE)
    np.testing.assert_allclose(got, expected, **FP32)
    seen = run(graph, parameters, TARGET, source=padded)
    assert np.abs(seen - expected).max() > 0.1


def test_sharded_is_unsharded(devices: list[jax.Device], model) -> None:
    _, graph, parameters = model
    mesh = jax.sharding.Mesh(np.array(devices[:8]).reshape(2, 2, 2), ("data", "fsdp", "model"))
    shardings = parameter_shardings(mesh, parameters, ARCHITECTURES[NAME].axes)
    assert sum(not sharding.is_fully_replicated for sharding in shardings.values()) > 10
    rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(("data", "fsdp")))
    target, source, real = jax.device_put((TARGET, SOURCE, REAL), rows)
    got = run(graph, jax.device_put(parameters, shardings), target, source=source, real=real)
    alone = jax.device_put((parameters, TARGET, SOURCE, REAL), devices[0])
    expected = run(graph, alone[0], alone[1], source=alone[2], real=alone[3])
    np.testing.assert_allclose(got, expected, **FP32)


@pytest.mark.parametrize("version", VERSIONS)
def test_bfloat16_is_close_to_float32(version: str) -> None:
    _, graph, parameters = build(version, initializer_factor=0.5)
    _, rough_graph, _ = build(version, "bfloat16", initializer_factor=0.5)
    exact = run(graph, parameters, TARGET, source=SOURCE)
    rough = run(rough_graph, parameters, TARGET, source=SOURCE)
    assert rough.dtype == jnp.float32
    assert not np.array_equal(rough, exact)
    # bfloat16 has 8 bits: each of some ten roundings in a row costs up to 0.4 %.
    np.testing.assert_allclose(rough, exact, atol=0.04 * float(jnp.max(jnp.abs(exact))))


def test_rows_end_at_the_stop_token() -> None:
    config, graph, parameters = build("1.1")
    start = np.full((4, 1), config.start_token, np.int32)

    def make(ending: Ending) -> np.ndarray:
        return generate(
            graph,
            parameters,
            start,
            inputs={"source": SOURCE, "real": REAL},
            max_new_tokens=12,
            context=64,
            sampling=Sampling(temperature=0.0),
            ending=ending,
            key=jax.random.key(0),
        )

    free = make(Ending())
    stop = int(free[0, 4])
    ended = make(Ending((stop,), pad_token=2))
    for row, without in zip(ended, free, strict=True):
        places = np.flatnonzero(without == stop)
        length = places[0] + 1 if places.size else ended.shape[1]
        np.testing.assert_array_equal(row[:length], without[:length])
        assert (row[length:] == 2).all()


def test_bad_feed_forward_is_refused() -> None:
    with pytest.raises(ValueError, match="an activation, or gated-<activation>"):
        build("1.0", feed_forward_proj="swapped-gelu")
    with pytest.raises(ValueError, match="num_buckets=6"):
        build("1.0", relative_attention_num_buckets=6)
