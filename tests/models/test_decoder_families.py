"""Laws that every decoder obeys, over all families: random weights, no reference needed."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding

from models.errors import InputError
from models.layers.paged_cache import Rows
from models.parameters import Parameters, merge
from models.pretrained import Pretrained
from models.sharding import batch_spec, parameter_shardings
from tests.models.parity.cases import DECODERS
from tests.models.tiny import random_model
from tests.quick_compile import QUICK_COMPILE

NAMES = (
    "LlamaForCausalLM 3, tied, biases",
    "MistralForCausalLM",
    "Qwen2ForCausalLM sliding window",
    "Qwen3ForCausalLM",
    "GraniteForCausalLM",
    "Phi3ForCausalLM longrope, long texts",
    "SmolLM3ForCausalLM sliding window",
    "Gemma3ForCausalLM",
    "MixtralForCausalLM sliding window",
    "Qwen3MoeForCausalLM mixed with dense layers",
    "GptOssForCausalLM",
    "Llama4ForCausalLM",
    "GPT2LMHeadModel scores by layer",
    "GPTNeoXForCausalLM",
    "PhiForCausalLM norms of heads",
    "GemmaForCausalLM",
    "Gemma2ForCausalLM",
    "Olmo2ForCausalLM",
    "CohereForCausalLM norms of heads",
    "Cohere2ForCausalLM",
    "GlmForCausalLM",
    "Glm4ForCausalLM",
    "SeedOssForCausalLM biases",
    "InternLM3ForCausalLM",
    "Starcoder2ForCausalLM sliding window",
    "FalconForCausalLM 40B",
    "GraniteMoeForCausalLM",
    "DeepseekV2ForCausalLM groups, queries of the stream",
    "DeepseekV3ForCausalLM",
    "MiniCPM3ForCausalLM",
)
CASES = {case.name: case for case in DECODERS}
LENGTH = 20
TOKENS = np.random.default_rng(0).integers(0, 96, (2, LENGTH)).astype(np.int32)
FP32 = {"rtol": 2e-5, "atol": 2e-5}


@pytest.fixture(scope="module", params=NAMES)
def model(request: pytest.FixtureRequest) -> Pretrained:
    case = CASES[request.param]
    return random_model({**case.config, "architectures": [case.architecture]})


def test_every_family_is_here() -> None:
    assert {CASES[name].architecture for name in NAMES} == {case.architecture for case in DECODERS}


def jitted(model: Pretrained) -> Callable[..., jax.Array]:
    """The logits of (parameters, tokens, pad)."""

    @partial(jax.jit, compiler_options=QUICK_COMPILE)
    def run(parameters: Parameters, tokens: jax.Array, pad: jax.Array | None = None) -> jax.Array:
        return merge(model.graph, parameters)(tokens, pad=pad)

    return run


def test_packed_texts_are_what_they_are_alone(model: Pretrained) -> None:
    lengths = (7, 9, 1)  # and three places that belong to no text
    starts = np.cumsum((0, *lengths))
    segments, positions = np.zeros((2, LENGTH), np.int32), np.zeros((2, LENGTH), np.int32)
    for number, (start, length) in enumerate(zip(starts, lengths, strict=False), 1):
        segments[:, start : start + length] = number
        positions[:, start : start + length] = np.arange(length)

    @partial(jax.jit, compiler_options=QUICK_COMPILE)
    def packed(parameters: Parameters, tokens: jax.Array) -> jax.Array:
        return merge(model.graph, parameters)(tokens, segments=segments, positions=positions)

    got = packed(model.parameters, TOKENS)
    alone = jitted(model)
    for start, length in zip(starts, lengths, strict=False):
        text = slice(start, start + length)
        np.testing.assert_allclose(got[:, text], alone(model.parameters, TOKENS[:, text]), **FP32)
    assert np.isfinite(got).all()


def test_pages_hold_what_whole_texts_need(model: Pretrained) -> None:
    """Windows, layers without positions and experts as a server runs them: a prompt in chunks, then
    token by token, beside another row. A server's texts end where all keys would turn anew."""
    block_size, width = 4, 8
    length = min([LENGTH, *model.config.boundaries])
    tables = np.arange(2, 2 + 2 * 5, dtype=np.int32).reshape(2, 5)[::-1]

    @partial(jax.jit, compiler_options=QUICK_COMPILE)
    def extend(parameters: Parameters, tokens: jax.Array, pages: Any, rows: Rows) -> Any:
        decoder = merge(model.graph, parameters)
        outputs, pages = decoder.extend_pages(tokens, pages, rows)
        return decoder.logits_of(outputs), pages

    pages = merge(model.graph, model.parameters).init_pages(13, block_size)
    whole = jitted(model)(model.parameters, TOKENS[:, :length])
    ends = [width, width + 5, *range(width + 6, length + 1)]
    for start, end in zip([0, *ends], ends, strict=False):
        tokens = np.zeros((2, width), np.int32)
        tokens[:, : end - start] = TOKENS[:, start:end]
        rows = Rows(tables, np.full(2, start, np.int32), np.full(2, end - start, np.int32))
        logits, pages = extend(model.parameters, tokens, pages, rows)
        np.testing.assert_allclose(logits, whole[:, end - 1], **FP32)


def test_packed_rows_need_segments_and_positions(model: Pretrained) -> None:
    with pytest.raises(InputError, match="both segments and positions"):
        merge(model.graph, model.parameters)(TOKENS, segments=np.ones_like(TOKENS))


@pytest.fixture(scope="module")
def all_logits(model: Pretrained) -> np.ndarray:
    """Of TOKENS, then of LENGTH texts of which text t differs from TOKENS[0] at position t."""
    changed = np.repeat(TOKENS[:1], LENGTH, axis=0)
    np.fill_diagonal(changed, (np.diagonal(changed) + 1) % 96)
    return np.asarray(jitted(model)(model.parameters, np.concatenate([TOKENS, changed])))


@pytest.fixture(scope="module")
def logits(all_logits: np.ndarray) -> np.ndarray:
    """Of TOKENS."""
    return all_logits[:2]


def test_later_tokens_change_later_logits_alone(all_logits: np.ndarray) -> None:
    before, after = all_logits[0], all_logits[2:]
    for t in range(LENGTH):
        np.testing.assert_allclose(after[t, :t], before[:t], **FP32)
        assert np.abs(after[t, t] - before[t]).max() > 1e-3


def test_a_cache_gives_the_same_logits(model: Pretrained, logits: np.ndarray) -> None:
    first = LENGTH - 3  # beyond every boundary: what is cached stays valid

    @partial(jax.jit, compiler_options=QUICK_COMPILE)
    def extend(parameters: Parameters, tokens: jax.Array, cache: Any, start: int) -> Any:
        return merge(model.graph, parameters).extend(tokens, cache, start)

    cache = merge(model.graph, model.parameters).init_cache(2, LENGTH + 4)
    got = []
    for begin, end in ((0, first), *((t, t + 1) for t in range(first, LENGTH))):
        some, cache = extend(model.parameters, TOKENS[:, begin:end], cache, begin)
        got.append(some)
    np.testing.assert_allclose(np.concatenate(got, axis=1), logits, **FP32)


def test_unused_places_at_the_beginning_do_not_matter(
    model: Pretrained, logits: np.ndarray
) -> None:
    unused = 5
    shorter = np.pad(TOKENS[1, :-unused], (unused, 0), constant_values=7)
    pad = np.array([0, unused], np.int32)
    padded = jitted(model)(model.parameters, np.stack([TOKENS[0], shorter]), pad)
    np.testing.assert_allclose(padded[0], logits[0], **FP32)
    np.testing.assert_allclose(padded[1, unused:], logits[1, :-unused], **FP32)


def test_sharded_is_unsharded(
    model: Pretrained, logits: np.ndarray, neuron_devices: list[jax.Device]
) -> None:
    rows = "fsdp" if model.config.experts is None else "expert"
    devices = np.array(neuron_devices).reshape(2, 2, 2)
    mesh = Mesh(devices, (rows, "context", "model"))
    shardings = parameter_shardings(mesh, model.parameters, model.axis_names())
    got = jitted(model)(
        jax.device_put(model.parameters, shardings),
        jax.device_put(TOKENS, NamedSharding(mesh, batch_spec(mesh.axis_names))),
    )
    np.testing.assert_allclose(got, logits, **FP32)


def test_bfloat16_is_close(model: Pretrained, logits: np.ndarray) -> None:
    case = CASES[model_name(model)]
    values = {**case.config, "architectures": [case.architecture], "dtype": "bfloat16"}
    narrow = random_model(values)  # the same numbers: they are exact in bfloat16
    got = jitted(narrow)(narrow.parameters, TOKENS)
    assert got.dtype == jnp.float32
    # 8 bits: each of some twenty roundings in a row costs up to 0.4 %.
    error = np.abs(got - logits) / np.abs(logits).max()
    assert np.median(error) < 0.01
    assert error.max() > 0


def model_name(model: Pretrained) -> str:
    return next(name for name in NAMES if CASES[name].architecture == model.architecture.name)
