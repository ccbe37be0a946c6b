"""The decoder against an FP64 reference, and the laws of a causal decoder."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from models.decoder.config import DecoderConfig
from models.decoder.model import Decoder
from models.errors import ShardingError
from models.parameters import Parameters, axis_names_of, merge, split
from models.sharding import RULES, parameter_shardings, partition_spec
from tests.models import reference

# Weights far larger than in training, so that every part of the block matters.
SMALL = {
    "vocab_size": 32,
    "num_layers": 2,
    "dim": 16,
    "hidden_dim": 24,
    "num_heads": 4,
    "num_kv_heads": 2,
    "head_dim": 8,
    "max_seq_len": 16,
    "initializer_range": 0.4,
}
TOKENS = np.random.default_rng(0).integers(0, 32, (2, 12)).astype(np.int32)


def build(**changes: object) -> tuple[DecoderConfig, nnx.GraphDef[Decoder], Parameters]:
    config = DecoderConfig(**{**SMALL, **changes})  # type: ignore[arg-type]
    graph, shapes = split(nnx.eval_shape(lambda: Decoder(config, rngs=nnx.Rngs(0))))
    rng = np.random.default_rng(0)
    scale = config.initializer_range

    def draw(shape: tuple[int, ...]) -> jax.Array:
        values = np.ones(shape) if len(shape) == 1 else scale * rng.normal(size=shape)
        return jax.device_put(values.astype(config.param_dtype))

    return config, graph, {name: draw(leaf.shape) for name, leaf in shapes.items()}


def logits_of(graph: nnx.GraphDef[Decoder], parameters: Parameters, tokens: jax.Array) -> jax.Array:
    return merge(graph, parameters)(tokens)


run = jax.jit(logits_of, static_argnums=0)


@pytest.mark.parametrize("tied", [True, False])
def test_decoder_is_the_fp64_reference(devices: list[jax.Device], tied: bool) -> None:
    config, graph, parameters = build(tie_embeddings=tied)
    got = run(graph, *jax.device_put((parameters, TOKENS), devices[0]))
    assert got.dtype == jnp.float32
    for row, tokens in zip(got, TOKENS, strict=True):
        expected = reference.decoder(tokens, parameters, config)
        # Two blocks of FP32 roundings on logits of up to ten or so.
        np.testing.assert_allclose(row, expected, rtol=1e-5, atol=3e-5)


def test_head_is_tied_or_a_table_of_its_own() -> None:
    config, _, tied = build(tie_embeddings=True)
    _, _, untied = build(tie_embeddings=False)
    assert set(untied) - set(tied) == {"head.table"}
    assert untied["head.table"].shape == (config.vocab_size, config.dim)


def test_later_tokens_never_change_earlier_logits() -> None:
    _, graph, parameters = build()
    before = run(graph, parameters, TOKENS)
    for t in range(TOKENS.shape[1]):
        changed = TOKENS.copy()
        changed[:, t] = (changed[:, t] + 1) % 32
        after = run(graph, parameters, changed)
        np.testing.assert_array_equal(after[:, :t], before[:, :t])
        assert (np.asarray(after[:, t:]) != np.asarray(before[:, t:])).any(axis=(0, 2)).all()


def test_gradient_of_a_logit_reaches_no_later_position() -> None:
    _, graph, parameters = build(tie_embeddings=False)
    distinct = np.arange(12, dtype=np.int32)[None]  # row i of the table is position i

    @jax.jit
    def gradient(t: jax.Array) -> jax.Array:
        def total(parameters: Parameters) -> jax.Array:
            return jnp.sum(logits_of(graph, parameters, distinct)[0, t] ** 2)

        return jax.grad(total)(parameters)["embedding.table"]

    for t in range(12):
        norms = np.linalg.norm(gradient(t), axis=1)
        assert (norms[: t + 1] > 0).all()
        assert (norms[t + 1 :] == 0).all()


@pytest.mark.parametrize("pieces", [(12,), (1,) * 12, (5, 1, 1, 5), (3, 8, 1)])
def test_cache_gives_the_same_logits(devices: list[jax.Device], pieces: tuple[int, ...]) -> None:
    _, graph, parameters = build()
    parameters, tokens = jax.device_put((parameters, TOKENS), devices[0])
    model = merge(graph, parameters)
    cache, start, got = model.init_cache(2, 14), 0, []
    extend = jax.jit(model.extend)
    for length in pieces:
        logits, cache = extend(tokens[:, start : start + length], cache, start)
        got.append(logits)
        start += length
    expected = run(graph, parameters, tokens)
    np.testing.assert_allclose(jnp.concatenate(got, axis=1), expected, rtol=1e-5, atol=3e-5)


def test_bfloat16_activations_leave_fp32_logits_and_weights() -> None:
    _, graph, parameters = build(dtype="bfloat16", initializer_range=0.1)
    _, exact_graph, _ = build(initializer_range=0.1)
    got, exact = run(graph, parameters, TOKENS), run(exact_graph, parameters, TOKENS)
    assert got.dtype == jnp.float32
    assert {value.dtype for value in parameters.values()} == {jnp.dtype("float32")}
    assert not np.array_equal(got, exact)
    # bfloat16 has 8 bits: each of some ten roundings in a row costs up to 0.4 %.
    np.testing.assert_allclose(got, exact, atol=0.04 * float(jnp.max(jnp.abs(exact))))


@pytest.mark.parametrize("mesh_shape", [(8, 1), (4, 2)])
def test_sharded_is_unsharded(devices: list[jax.Device], mesh_shape: tuple[int, int]) -> None:
    _, graph, parameters = build()
    tokens = np.random.default_rng(1).integers(0, 32, (8, 12)).astype(np.int32)
    mesh = jax.sharding.Mesh(
        np.array(devices[: np.prod(mesh_shape)]).reshape(mesh_shape), ("data", "model")
    )

    sharded = jax.device_put(
        parameters, parameter_shardings(mesh, parameters, axis_names_of(graph, parameters))
    )
    rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))

    @jax.jit
    def loss_and_gradient(
        parameters: Parameters, tokens: jax.Array
    ) -> tuple[jax.Array, Parameters]:
        def loss(parameters: Parameters) -> jax.Array:
            return jnp.mean(jax.nn.logsumexp(logits_of(graph, parameters, tokens), axis=-1))

        return jax.value_and_grad(loss)(parameters)

    loss, gradient = loss_and_gradient(sharded, jax.device_put(tokens, rows))
    expected_loss, expected = loss_and_gradient(*jax.device_put((parameters, tokens), devices[0]))
    np.testing.assert_allclose(loss, expected_loss, rtol=2e-6)
    for name, value in gradient.items():
        largest = float(jnp.max(jnp.abs(expected[name])))
        np.testing.assert_allclose(value, expected[name], rtol=0, atol=2e-5 * largest, err_msg=name)


def test_all_parameters_but_norms_are_split() -> None:
    _, graph, parameters = build(tie_embeddings=False)
    axes = axis_names_of(graph, parameters)
    split_ones = [name for name in parameters if any(partition_spec(name, axes, RULES))]
    assert {name for name in parameters if not name.endswith("norm.scale")} == set(split_ones)


def test_parameter_without_names_of_its_axes_is_refused() -> None:
    with pytest.raises(ShardingError, match=r"axes of .*blocks\.0\.new\.kernel.* have no names"):
        partition_spec("blocks.0.new.kernel", {}, RULES)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_heads": 3}, "num_heads=3 is not a multiple of num_kv_heads=2"),
        ({"head_dim": 7}, "head_dim=7 is odd"),
    ],
)
def test_bad_dimensions_are_refused(changes: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DecoderConfig(**{**SMALL, **changes})  # type: ignore[arg-type]
