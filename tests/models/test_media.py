"""Laws of the models of images and sound: sharding, bfloat16, caches, causality, batch norms."""

from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from models.errors import ConfigError, InputError
from models.layers.norms import BatchNorm
from models.parameters import Parameters, axis_names_of, merge, split
from models.pretrained import describe_fields
from models.sharding import parameter_shardings
from models.weights.fields import Fields
from tests.models.parity.cases import GEMMA3, SMOLVLM
from tests.models.parity.media_cases import (
    AST,
    AUTOENCODER,
    BOTH,
    CONTROL,
    CVT,
    DPT,
    FLUX,
    LEVIT,
    MOBILENET,
    MOBILEVIT,
    PIXART,
    RESNET,
    SDXL,
    SWIN,
    TEXT,
    UNET,
    VISION,
    WHISPER,
    YOLOS,
)
from tests.models.tiny import random_model
from tests.quick_compile import QUICK_COMPILE

RNG = np.random.default_rng(0)
IMAGES = RNG.normal(size=(4, 24, 24, 3)).astype(np.float32)
TEXTS = np.sort(RNG.integers(3, 96, (4, 10)))
SOUNDS = RNG.normal(size=(4, 24, 8)).astype(np.float32)
LATENTS = RNG.normal(size=(4, 8, 8, 4)).astype(np.float32)
TIMES = np.array([900.0, 500.0, 20.0, 1.0], np.float32)
CONTEXT = RNG.normal(size=(4, 7, 24)).astype(np.float32)
POOLED = RNG.normal(size=(4, 24)).astype(np.float32)
IDS = np.tile(np.array([16, 16, 0, 4, 16, 16], np.float32), (4, 1))
PICTURES = RNG.normal(size=(4, 16, 16, 3)).astype(np.float32)
GEMMA, SMOL = "Gemma3ForConditionalGeneration", "SmolVLMForConditionalGeneration"
STDDEV = 0.15  # of weights: far larger than in training, so that every part of a model matters


class Model(NamedTuple):
    """A model and one of its functions."""

    config: dict[str, Any]
    call: Callable[..., jax.Array]
    inputs: tuple[np.ndarray, ...]


MODELS = {
    "ViTForImageClassification": Model(VISION, lambda m, *x: m(*x), (IMAGES,)),
    "DeiTForImageClassificationWithTeacher": Model(VISION, lambda m, *x: m(*x), (IMAGES,)),
    "ResNetForImageClassification": Model(RESNET, lambda m, *x: m(*x), (IMAGES,)),
    "SwinForImageClassification": Model(SWIN, lambda m, *x: m(*x), (IMAGES,)),
    "MobileNetV2ForSemanticSegmentation": Model(MOBILENET, lambda m, *x: m(*x), (IMAGES,)),
    "CvtForImageClassification": Model(CVT, lambda m, *x: m(*x), (IMAGES,)),
    "CLIPModel": Model(BOTH, lambda m, *x: m(*x), (TEXTS, IMAGES)),
    "WhisperForConditionalGeneration": Model(WHISPER, lambda m, *x: m(*x), (SOUNDS, TEXTS)),
    "UNet2DConditionModel": Model(UNET, lambda m, *x: m(*x), (LATENTS, TIMES, CONTEXT)),
    "UNet2DConditionModel SDXL": Model(
        UNET | SDXL,
        lambda m, *x: m(*x[:3], pooled=x[3], ids=x[4]),
        (LATENTS, TIMES, CONTEXT, POOLED, IDS),
    ),
    "ControlNetModel": Model(
        CONTROL, lambda m, *x: m(*x).middle.astype(jnp.float32), (LATENTS, TIMES, CONTEXT, PICTURES)
    ),
    "PixArtTransformer2DModel": Model(
        PIXART | {"caption_channels": 24, "use_additional_conditions": True, "num_layers": 1},
        lambda m, *x: m(*x[:3], ids=x[3]),
        (LATENTS, TIMES, CONTEXT, IDS),
    ),
    "FluxTransformer2DModel": Model(
        FLUX
        | {"joint_attention_dim": 24, "guidance_embeds": True}
        | {"num_layers": 1, "num_single_layers": 1},
        lambda m, *x: m(*x[:3], pooled=x[3], guidance=x[4]),
        (LATENTS, TIMES, CONTEXT, POOLED, np.full(4, 3.5, np.float32)),
    ),
    "AutoencoderKL": Model(AUTOENCODER, lambda m, *x: m.decode(*x), (LATENTS,)),
    "AutoencoderKL encoder": Model(AUTOENCODER, lambda m, *x: m.encode(*x).mean, (PICTURES,)),
}


def build(name: str, config: dict[str, Any], **dtypes: str) -> tuple[Any, Any, Parameters]:
    """(architecture, graph, parameters) of a random model."""
    fields = Fields({**config, "architectures": [name.split()[0]], **dtypes}, "the test")
    architecture, read, _ = describe_fields(fields, **dtypes)
    graph, abstract = architecture.abstract(read)
    rng = np.random.default_rng(2)
    parameters = {path: initial(path, leaf.shape, rng) for path, leaf in abstract.items()}
    return architecture, graph, parameters


def initial(path: str, shape: tuple[int, ...], rng: np.random.Generator) -> jax.Array:
    """Random weights; norms that change nothing. Convolutions keep the size of what they are
    given: deep networks have nothing else that does."""
    if len(shape) > 1:
        stddev = np.sqrt(2 / np.prod(shape[:-1])) if len(shape) == 4 else STDDEV
        return jnp.asarray(stddev * rng.normal(size=shape), jnp.float32)
    return jnp.full(shape, float(path.endswith(("scale", "variance"))))


@partial(jax.jit, static_argnums=(0, 1), compiler_options=QUICK_COMPILE)
def run(graph: Any, call: Any, parameters: Parameters, *inputs: jax.Array) -> jax.Array:
    return call(merge(graph, parameters), *inputs)


@cache
def exact(name: str) -> tuple[Any, Any, Parameters, np.ndarray]:
    """A random model as from `build`, and what it makes of its inputs."""
    model = MODELS[name]
    architecture, graph, parameters = build(name, model.config)
    output = np.asarray(run(graph, model.call, parameters, *model.inputs))
    return architecture, graph, parameters, output


@pytest.mark.parametrize("name", MODELS)
def test_sharded_is_unsharded(devices: list[jax.Device], name: str) -> None:
    model = MODELS[name]
    _, graph, parameters, expected = exact(name)
    mesh = Mesh(np.array(devices[:4]).reshape(2, 2), ("data", "model"))
    axes = axis_names_of(graph, parameters)
    sharded = jax.device_put(parameters, parameter_shardings(mesh, parameters, axes))
    rows = NamedSharding(mesh, PartitionSpec("data"))
    got = run(graph, model.call, sharded, *jax.device_put(model.inputs, rows))
    largest = float(np.abs(expected).max())
    assert largest > 1e-3
    np.testing.assert_allclose(got, expected, rtol=0, atol=2e-5 * largest)
    assert any(not value.sharding.is_fully_replicated for value in sharded.values())


@pytest.mark.parametrize("name", MODELS)
def test_bfloat16_stays_close(name: str) -> None:
    model = MODELS[name]
    *_, expected = exact(name)
    _, graph, parameters = build(name, model.config, dtype="bfloat16", param_dtype="float32")
    got = run(graph, model.call, parameters, *model.inputs)
    assert got.dtype == jnp.float32
    assert not np.array_equal(got, expected)
    # bfloat16 has 8 bits: each of some thirty roundings in a row costs up to 0.4 %.
    error = float(jnp.sqrt(jnp.mean(jnp.square(got - expected))))
    assert error < 0.05 * float(np.sqrt(np.mean(np.square(expected))))


@partial(jax.jit, static_argnums=0, compiler_options=QUICK_COMPILE)
def listen(graph: Any, parameters: Parameters, sound: jax.Array) -> Any:
    return merge(graph, parameters).init_cache(4, 12, features=sound)


@partial(jax.jit, static_argnums=0, compiler_options=QUICK_COMPILE)
def extend(graph: Any, parameters: Parameters, text: jax.Array, cache: Any, start: int) -> Any:
    return merge(graph, parameters).extend(text, cache, start)


@pytest.mark.parametrize("pieces", [(10,), (1,) * 10, (4, 1, 5)])
def test_whisper_cache_gives_the_same_logits(pieces: tuple[int, ...]) -> None:
    _, graph, parameters, expected = exact("WhisperForConditionalGeneration")
    cache, start, got = listen(graph, parameters, SOUNDS), 0, []
    for length in pieces:
        logits, cache = extend(graph, parameters, TEXTS[:, start : start + length], cache, start)
        got.append(logits)
        start += length
    scale = float(np.abs(expected).max())
    np.testing.assert_allclose(jnp.concatenate(got, axis=1), expected, rtol=0, atol=1e-5 * scale)


def test_whisper_hears_everything_and_reads_what_is_before() -> None:
    _, graph, parameters, before = exact("WhisperForConditionalGeneration")
    call = MODELS["WhisperForConditionalGeneration"].call
    text = TEXTS.copy()
    text[:, 5] = (text[:, 5] + 1) % 96
    after = run(graph, call, parameters, SOUNDS, text)
    np.testing.assert_array_equal(after[:, :5], before[:, :5])
    assert (np.asarray(after[:, 5:]) != np.asarray(before[:, 5:])).any(axis=(0, 2)).all()
    sound = SOUNDS.copy()
    sound[:, -1] += 1  # the last frame
    heard = run(graph, call, parameters, sound, TEXTS)
    assert (np.asarray(heard) != np.asarray(before)).any(axis=-1).all()


def test_clip_reads_what_is_before() -> None:
    _, graph, parameters = build("CLIPTextModel", TEXT)
    changed = TEXTS.copy()
    changed[:, 5] = (changed[:, 5] + 1) % 96
    before, after = (
        np.asarray(run(graph, lambda m, x: m.encode(x).hidden, parameters, text))
        for text in (TEXTS, changed)
    )
    np.testing.assert_array_equal(after[:, :5], before[:, :5])
    assert (after[:, 5:] != before[:, 5:]).any(axis=(0, 2)).all()


def test_clip_ignores_what_follows_the_end_of_a_text() -> None:
    _, graph, parameters = build("CLIPTextModel", TEXT)
    ended = TEXTS.copy()
    ended[:, 6:] = 95
    other = ended.copy()
    other[:, 7:] = 4
    pooled = [
        run(graph, lambda m, x: m.encode(x).pooled, parameters, text) for text in (ended, other)
    ]
    np.testing.assert_allclose(*pooled, rtol=1e-5, atol=1e-6)


def test_batch_norm_learns_the_statistics_of_its_batches() -> None:
    norm = BatchNorm(3, eps=1e-3, momentum=0.25, param_dtype="float32")
    x = 5 + 2 * np.random.default_rng(1).normal(size=(4, 6, 7, 3)).astype(np.float32)
    wide = x.astype(np.float64)
    mean, variance = wide.mean(axis=(0, 1, 2)), wide.var(axis=(0, 1, 2))
    got = norm(jnp.asarray(x), train=True)
    np.testing.assert_allclose(got, (wide - mean) / np.sqrt(variance + 1e-3), rtol=1e-4, atol=1e-5)
    count = x.size // 3
    running = 0.25 * mean, 0.75 + 0.25 * variance * count / (count - 1)
    np.testing.assert_allclose(norm.mean[...], running[0], rtol=1e-5)
    np.testing.assert_allclose(norm.variance[...], running[1], rtol=1e-5)
    expected = (wide - running[0]) / np.sqrt(running[1] + 1e-3)
    np.testing.assert_allclose(norm(jnp.asarray(x)), expected, rtol=1e-4, atol=1e-5)


def test_training_a_resnet_moves_its_statistics() -> None:
    _, graph, parameters = build("ResNetForImageClassification", RESNET)

    @jax.jit
    def train(parameters: Parameters) -> tuple[jax.Array, Parameters]:
        model = merge(graph, parameters)
        logits = model(IMAGES, train=True)
        return logits, split(model)[1]

    _, after = train(parameters)
    moved = {name for name in after if not np.array_equal(after[name], parameters[name])}
    assert moved == {name for name in after if name.endswith((".mean", ".variance"))}


def test_gradient_stops_at_running_statistics() -> None:
    norm = BatchNorm(3, param_dtype="float32")
    graph, parameters = split(norm)

    def loss(parameters: Parameters) -> jax.Array:
        return jnp.sum(merge(graph, parameters)(IMAGES) ** 2)

    gradients = jax.grad(loss)(parameters)
    assert {name for name, value in gradients.items() if not np.any(value)} == {"mean", "variance"}


@pytest.mark.parametrize(
    ("name", "config", "inputs", "message"),
    [
        ("ViTModel", VISION, (IMAGES[:, :20],), r"\[4, 20, 24, 3\].*\[B, 24, 24, 3\]"),
        ("ResNetModel", RESNET, (IMAGES[..., :2],), r"\[4, 24, 24, 2\].*\[B, H, W, 3\]"),
        ("SwinModel", SWIN, (IMAGES[:, :20],), r"\[4, 20, 24, 3\].*\[B, 24, 24, 3\]"),
        ("CvtModel", CVT, (IMAGES[:, :2],), "too small: a stage turns 2 x 24 positions into 0 x 6"),
        (
            "YolosModel",
            YOLOS,
            (IMAGES[:, :7],),
            "7 x 24 pixels, less than a patch, 8 x 8",
        ),
        ("LevitModel", LEVIT, (IMAGES,), r"\[4, 24, 24, 3\].*\[B, 48, 48, 3\]"),
        ("MobileNetV2Model", MOBILENET, (IMAGES[..., :2],), r"\[4, 24, 24, 2\].*\[B, H, W, 3\]"),
        ("MobileViTModel", MOBILEVIT, (IMAGES[0],), r"\[24, 24, 3\].*\[B, H, W, 3\]"),
        ("ASTModel", AST, (SOUNDS,), r"\[4, 24, 8\].*\[B, 11, 8\]"),
        ("CLIPVisionModel", VISION, (IMAGES[0],), r"\[24, 24, 3\].*\[B, 24, 24, 3\]"),
    ],
)
def test_pixels_that_do_not_suit_are_refused(
    name: str, config: dict[str, Any], inputs: tuple[np.ndarray, ...], message: str
) -> None:
    _, graph, parameters = build(name, config)
    with pytest.raises(InputError, match=message):
        merge(graph, parameters).features(*inputs)


@pytest.mark.parametrize(
    ("name", "config", "message"),
    [
        ("ViTModel", VISION | {"num_attention_heads": 5}, "dim=32 is not a multiple"),
        (
            GEMMA,
            GEMMA3 | {"mm_tokens_per_image": 5},
            "6 x 6 patches cannot be pooled into 5 tokens",
        ),
        (GEMMA, GEMMA3 | {"text_config": {"layer_types": [{}] * 26}}, "for each layer"),
        (SMOL, SMOLVLM | {"scale_factor": 4}, "is not a multiple of scale_factor=4"),
        (SMOL, SMOLVLM | {"text_config": {"model_type": "phi"}}, "only llama is supported"),
        (
            "ViTModel",
            VISION | {"patch_size": 48},
            r"patch_size=\(48, 48\) is larger than the image",
        ),
        ("ResNetModel", RESNET | {"depths": [1]}, "has 2 values, but needs 1: one for each stage"),
        ("SwinModel", SWIN | {"image_size": 25}, "is not a multiple of patch_size"),
        ("SwinModel", SWIN | {"window_size": 7}, "stage 1 has 6 x 6 tokens, fewer than a window"),
        ("MobileNetV2Model", MOBILENET | {"output_stride": 4}, "it must be one of 8, 16, 32"),
        (
            "CvtModel",
            CVT | {"stride_q": [1, 2]},
            "stage 1 has .* does not give one query per token",
        ),
        (
            "LevitModel",
            LEVIT | {"image_size": 49},
            "into 4 x 4 tokens, but patches of 16 pixels give 3",
        ),
        (
            "DPTForDepthEstimation",
            DPT | {"image_size": [16, 24]},
            "must be a square multiple of patch_size",
        ),
        ("DPTModel", DPT | {"is_hybrid": True}, "only a ViT backbone"),
        ("DPTForDepthEstimation", DPT | {"neck_hidden_sizes": [8]}, "neck_dims has 1 and"),
        ("YolosModel", YOLOS | {"patch_size": 0}, "patch_size"),
        ("MobileViTModel", MOBILEVIT | {"conv_kernel_size": 2}, "the kernel size must be odd"),
        ("ASTModel", AST | {"patch_size": 9}, "patch_size=9 is larger than the spectrogram"),
        (
            "CLIPTextModel",
            TEXT | {"hidden_act": "gelo"},
            "'gelo': it must be one of gelu",
        ),
        ("UNet2DConditionModel", UNET | {"norm_num_groups": 5}, "are not multiples of 5 groups"),
        ("ControlNetModel", CONTROL | {"global_pool_conditions": True}, "only False is supported"),
        ("ControlNetModel", CONTROL | {"controlnet_conditioning_channel_order": "x"}, "rgb or bgr"),
        ("FluxTransformer2DModel", FLUX | {"axes_dims_rope": [4, 2]}, "three even numbers"),
        (
            "FluxTransformer2DModel",
            FLUX | {"in_channels": 18},
            "must be a multiple of 4, for patches of 2 x 2",
        ),
        ("PixArtTransformer2DModel", PIXART | {"sample_size": 15}, "not a multiple of patch_size"),
        ("PixArtTransformer2DModel", PIXART | {"norm_type": "ada_norm"}, "only ada_norm_single"),
        ("UNet2DConditionModel", UNET | {"class_embed_type": "timestep"}, "class_embed_type"),
        ("UNet2DConditionModel", UNET | {"attention_head_dim": [2]}, "each of the 2 levels"),
        ("UNet2DConditionModel", UNET | {"block_out_channels": ["x"]}, "a list of integers"),
        ("UNet2DConditionModel", UNET | {"down_block_types": [["x"]]}, "a list of texts"),
        ("UNet2DConditionModel", UNET | {"sample_size": [12]}, "one or two positive integers"),
        ("CvtModel", CVT | {"qkv_projection_method": [["dw_bn"]]}, "a list of texts"),
        ("CvtModel", CVT | {"cls_token": None}, "cls_token=None: it must be given"),
    ],
)
def test_configs_that_do_not_fit_are_refused(
    name: str, config: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        describe_fields(Fields({**config, "architectures": [name]}, "the test"))


def test_images_of_a_denoiser_may_be_wide() -> None:
    fields = {**UNET, "sample_size": [12, 20], "architectures": ["UNet2DConditionModel"]}
    assert describe_fields(Fields(fields, "the test")).config.sides == (12, 20)


def test_one_layer_has_no_positions_between_layers() -> None:
    fields = YOLOS | {"num_hidden_layers": 1, "use_mid_position_embeddings": True}
    model = random_model({**fields, "architectures": ["YolosForObjectDetection"]})
    graph, parameters = model.graph, model.parameters
    pixels = np.zeros((1, *model.config.image_size, 3), np.float32)
    assert np.isfinite(jax.jit(lambda p: merge(graph, p)(pixels).boxes)(parameters)).all()


def test_features_alone_give_no_logits() -> None:
    _, graph, parameters = build("ViTModel", VISION)
    with pytest.raises(ConfigError, match="no classifier"):
        jax.eval_shape(merge(graph, parameters), IMAGES)


@pytest.mark.parametrize(
    ("name", "config", "inputs"),
    [
        ("CLIPTextModel", TEXT, ()),
        ("WhisperForConditionalGeneration", WHISPER, (SOUNDS,)),
    ],
)
def test_a_text_longer_than_the_positions_is_refused(
    name: str, config: dict[str, Any], inputs: tuple[np.ndarray, ...]
) -> None:
    _, graph, parameters = build(name, config)
    model = merge(graph, parameters)
    call = model.encode if name == "CLIPTextModel" else model
    longest = config.get("max_target_positions") or config["max_position_embeddings"]
    jax.eval_shape(call, *inputs, np.full((len(SOUNDS), longest), 5))
    with pytest.raises(
        InputError, match=f"{longest + 1} tokens, but .* context is {longest}. Shorten"
    ):
        jax.eval_shape(call, *inputs, np.full((len(SOUNDS), longest + 1), 5))
