"""The laws of an encoder-decoder, from random weights."""

import json
from functools import cache, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from models import pretrained
from models.constraints import Ending
from models.generate import generate
from models.parameters import Parameters, merge
from models.pretrained import Pretrained
from models.sampling import Sampling
from models.sharding import parameter_shardings
from tests.models.parity.text_cases import BART, T5, T5_1_1
from tests.models.tiny import random_model
from tests.quick_compile import QUICK_COMPILE

NAME = "T5ForConditionalGeneration"
VERSIONS = {
    "1.0": T5,
    "1.1": T5_1_1,
    "BART": BART | {"architectures": ["BartForConditionalGeneration"]},
}
RNG = np.random.default_rng(0)
SOURCE = RNG.integers(3, 96, (4, 9)).astype(np.int32)
REAL = np.arange(9) < np.array([[9], [5], [7], [9]])
TARGET = np.concatenate([np.zeros((4, 1)), RNG.integers(3, 96, (4, 9))], axis=1).astype(np.int32)
# Five blocks of FP32 roundings on logits of up to ten or so.
FP32 = {"rtol": 1e-5, "atol": 1e-4}
quick = partial(jax.jit, static_argnums=0, compiler_options=QUICK_COMPILE)


def build(version: str, changes: dict[str, Any] | None = None, **options: Any) -> Pretrained:
    values = {"architectures": [NAME], **VERSIONS[version], **(changes or {})}
    return random_model(values, **options)


@quick
def run(graph: nnx.GraphDef, parameters: Parameters, target: jax.Array, **source: jax.Array):
    return merge(graph, parameters)(target, **source)


@quick
def listen(graph: nnx.GraphDef, parameters: Parameters, **source: jax.Array):
    return merge(graph, parameters).init_cache(4, 12, **source)


@quick
def extend(graph: nnx.GraphDef, parameters: Parameters, target: jax.Array, cache: Any, start: int):
    return merge(graph, parameters).extend(target, cache, start)


@cache
def whole(version: str) -> tuple[Pretrained, np.ndarray]:
    """A model and its logits of TARGET after SOURCE."""
    model = build(version)
    logits = run(model.graph, model.parameters, TARGET, source=SOURCE, real=REAL)
    return model, np.asarray(logits)


def test_versions_differ_in_head_and_feed_forward() -> None:
    old, new = (build(version).parameters for version in ("1.0", "1.1"))
    only_new = {name.split(".")[-2] for name in set(new) - set(old)}
    assert set(old) < set(new)
    assert only_new == {"gate", "head"}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("pieces", [(10,), (1,) * 10, (4, 1, 5)])
def test_cache_gives_the_same_logits(
    devices: list[jax.Device], version: str, pieces: tuple[int, ...]
) -> None:
    model, expected = whole(version)
    parameters, target, source, real = jax.device_put(
        (model.parameters, TARGET, SOURCE, REAL), devices[0]
    )
    cache, start, got = listen(model.graph, parameters, source=source, real=real), 0, []
    for length in pieces:
        some = target[:, start : start + length]
        logits, cache = extend(model.graph, parameters, some, cache, start)
        got.append(logits)
        start += length
    np.testing.assert_allclose(jnp.concatenate(got, axis=1), expected, **FP32)


@pytest.mark.parametrize("version", VERSIONS)
def test_later_tokens_never_change_earlier_logits(version: str) -> None:
    model, before = whole(version)
    for t in range(1, TARGET.shape[1]):
        changed = TARGET.copy()
        changed[:, t] = 3 + (changed[:, t] - 2) % 93
        after = run(model.graph, model.parameters, changed, source=SOURCE, real=REAL)
        np.testing.assert_array_equal(after[:, :t], before[:, :t])
        assert (np.asarray(after[:, t:]) != before[:, t:]).any(axis=(0, 2)).all()


@pytest.mark.parametrize("version", VERSIONS)
def test_padding_of_the_source_changes_nothing(version: str) -> None:
    model, expected = whole(version)
    junk = np.random.default_rng(1).integers(3, 96, (4, 6)).astype(np.int32)
    padded = np.concatenate([SOURCE, junk], axis=1)
    real = np.concatenate([REAL, np.zeros_like(junk, bool)], axis=1)
    got = run(model.graph, model.parameters, TARGET, source=padded, real=real)
    np.testing.assert_allclose(got, expected, **FP32)
    everything = np.ones_like(real)
    seen = run(model.graph, model.parameters, TARGET, source=padded, real=everything)
    assert np.abs(seen - expected).max() > 0.1


@pytest.mark.parametrize("version", VERSIONS)
def test_sharded_is_unsharded(devices: list[jax.Device], version: str) -> None:
    model, expected = whole(version)
    mesh = jax.sharding.Mesh(np.array(devices[:8]).reshape(2, 2, 2), ("data", "fsdp", "model"))
    shardings = parameter_shardings(mesh, model.parameters, model.axis_names())
    assert sum(not sharding.is_fully_replicated for sharding in shardings.values()) > 10
    rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(("data", "fsdp")))
    target, source, real = jax.device_put((TARGET, SOURCE, REAL), rows)
    parameters = jax.device_put(model.parameters, shardings)
    got = run(model.graph, parameters, target, source=source, real=real)
    np.testing.assert_allclose(got, expected, **FP32)


@pytest.mark.parametrize("version", VERSIONS)
def test_bfloat16_is_close_to_float32(version: str) -> None:
    exact, rough = (
        run(model.graph, model.parameters, TARGET, source=SOURCE, real=REAL)
        for model in (build(version, stddev=0.1), build(version, stddev=0.1, dtype="bfloat16"))
    )
    assert rough.dtype == jnp.float32
    assert not np.array_equal(rough, exact)
    # bfloat16 has 8 bits: each of some ten roundings in a row costs up to 0.4 %.
    np.testing.assert_allclose(rough, exact, atol=0.04 * float(jnp.max(jnp.abs(exact))))


def test_the_encoder_alone_reads_whole_checkpoints(tmp_path: Path) -> None:
    model, _ = whole("1.1")
    pretrained.save(tmp_path, model)
    values = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(
        json.dumps(values | {"architectures": ["T5EncoderModel"]})
    )
    alone = pretrained.load(tmp_path)
    assert set(alone.parameters) == {
        name for name in model.parameters if name.startswith(("embedding.", "encoder."))
    }
    got = jax.jit(merge(alone.graph, alone.parameters))(SOURCE, real=REAL)["hidden"]
    expected = jax.jit(merge(model.graph, model.parameters).encode)(SOURCE, REAL)
    np.testing.assert_allclose(got, expected, **FP32)


def test_rows_end_at_the_stop_token() -> None:
    model = build("1.1")
    start = np.full((4, 1), model.config.start_token, np.int32)

    def make(ending: Ending) -> np.ndarray:
        return generate(
            model.graph,
            model.parameters,
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
    with pytest.raises(ValueError, match="an activation or gated-<activation>"):
        build("1.0", {"feed_forward_proj": "swapped-gelu"})
    with pytest.raises(ValueError, match="num_buckets=6"):
        build("1.0", {"relative_attention_num_buckets": 6})
