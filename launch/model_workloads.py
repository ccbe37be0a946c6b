"""The steps of any model of the registry as shapes, for `neuronjax fit` and `neuronjax estimate`.

Nothing here allocates. A generator of text has the phases `prefill` and `decode`, what writes about
a source `encode` and `decode`, everything else `forward`.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

from models.decoder.padding import repeat_kv_heads
from models.padding import describe_padding
from models.parameters import Parameters, axis_names_of, merge
from models.pretrained import Described, describe, padded
from models.sharding import batch_spec, parameter_shardings

DEFAULT_LENGTH = 2048
"""Tokens of a text, where the model's context holds as many."""
_TOKENS_OF_ENCODERS = 512
_SHORTEST_BUCKET = 128  # tokens; buckets are powers of two from here (NxD Inference: bucketing)
_CHOICES = 4
_IMAGE_SIZE = 224
_SAMPLES = 160_000  # ten seconds of speech
_IDS = 6  # of SDXL: sizes and places of a picture
_ALIKE = (3, 4)
"""Depths from which that of a model follows whose layers are all alike."""

Model = Any


class Step(NamedTuple):
    """A call of a model: `run` and `inputs`, trees of shapes with the batch as first axis.

    Input 0 is donated if it is `kept`: a cache. `tokens` are read or written by a row.
    """

    run: Callable[..., Any]
    inputs: tuple[Any, ...]
    tokens: int | None = None
    kept: bool = False


class Size(NamedTuple):
    """The size of a step: rows, and tokens per row."""

    batch: int
    length: int


Steps = Mapping[str, Callable[[Model, Any, Size], Step]]
"""Name of a phase -> the step, of a model of shapes, its config and a size."""


class Phase(NamedTuple):
    """A workload as `neuronjax estimate` takes it, and from which depths the whole follows."""

    name: str
    make: Callable[..., dict[str, Any]]
    depths: tuple[int, int]


def phases(model: str, length: int | None = None) -> list[Phase]:
    """The phases of the model of a directory or of a config.json.

    `length` is that of texts in tokens; default: what the model is usually given.
    Raises ConfigError if the model is not supported.
    """
    described = describe(Path(model))
    depths = layer_depths(described.config) or _ALIKE
    steps = STEPS[described.architecture.task]
    return [Phase(name, partial(_make_phase, model, name, length), depths) for name in steps]


def layer_depths(config: Any) -> tuple[int, int] | None:
    """Two depths from which the time of all layers follows; None: layers differ without a rule, or
    the model has stages instead."""
    layers = getattr(config, "num_layers", None)
    if layers is None or hasattr(config, "num_decoder_layers"):
        return None
    kinds = [config.__dict__.get(name, ()) for name in _LAYER_SETS]
    pattern = [tuple(number in kind for kind in kinds) for number in range(layers)]
    period = next(p for p in range(1, layers + 1) if pattern[p:] == pattern[: layers - p])
    if period == 1:
        return _ALIKE
    if layers % period == 0 and 2 * period < layers:
        return (period, 2 * period)
    # The first layers may differ from all others, as in DeepSeek.
    first = next(n for n in range(layers) if len(set(pattern[n:])) == 1)
    shallow, deep = (first + depth for depth in _ALIKE)
    return (shallow, deep) if deep < layers else None


_LAYER_SETS = ("sliding_layers", "no_rotary_layers", "dense_layers", "local_layers")
"""Fields of configs that name some of the layers."""


def _make_phase(
    model: str,
    phase: str,
    length: int | None,
    *,
    mesh: AbstractMesh,
    batch: int | None = None,
    dtype: str = "bfloat16",
    layers: int | None = None,
    pad: bool = False,
) -> dict[str, Any]:
    """A phase of a model: `batch` counts over all cores. With `pad`, sizes that the mesh does not
    divide are rounded up. All that it is given goes to other processes as it is.
    """
    described = describe(Path(model))
    is_deep = layer_depths(described.config) is not None
    config = replace(described.config, dtype=dtype, param_dtype=dtype)
    whole = getattr(config, "num_layers", None) if is_deep else None
    if is_deep and layers:
        config = replace(config, num_layers=layers)
    if hasattr(config, "num_kv_heads"):
        config = repeat_kv_heads(config, mesh.shape)
    asked = described._replace(config=config)
    graph, parameters = described.architecture.abstract(config)
    assumed: list[str] = []
    if pad:
        before, names = parameters, axis_names_of(graph, parameters)
        larger, graph, parameters = padded(asked, dict(mesh.shape))
        config, assumed = larger.config, describe_padding(before, parameters, names)
    size = Size(batch or mesh.shape.get("data", 1), length or _usual_length(described))
    make_step = STEPS[described.architecture.task][phase]
    step = make_step(_Shaped(graph, parameters), config, size)
    shardings = parameter_shardings(mesh, parameters, axis_names_of(graph, parameters))

    def run(params: Parameters, *inputs: Any) -> Any:
        return step.run(merge(graph, params), *inputs)

    weights = {
        name: jax.ShapeDtypeStruct(value.shape, value.dtype, sharding=shardings[name])
        for name, value in parameters.items()
    }
    made = {
        "fn": jax.jit(run, donate_argnums=1 if step.kept else ()),
        "arguments": (weights, *(_shard_tree(tree, mesh) for tree in step.inputs)),
        "assumed": assumed,
        "kinds": {
            "params": "weights",
            "inputs": "inputs",
            **({"inputs[0]": "cache"} if step.kept else {}),
        },
        "samples": size.batch,
        "programs": _programs(described, size.length),
    }
    if step.tokens is not None:
        made["tokens"] = step.tokens * size.batch
    return made if whole is None else {**made, "layers": whole}


def _programs(described: Described, length: int) -> int:
    """Programs that a server loads beside this one, itself among them: a generator has all its
    phases for each bucket of lengths."""
    phases = STEPS[described.architecture.task]
    buckets = 1 + max(0, math.ceil(math.log2(length / _SHORTEST_BUCKET)))
    return len(phases) * buckets if "decode" in phases else 1


def _usual_length(described: Described) -> int:
    usual = DEFAULT_LENGTH if "decode" in STEPS[described.architecture.task] else None
    longest = getattr(described.config, "max_seq_len", _TOKENS_OF_ENCODERS)
    return min(usual or _TOKENS_OF_ENCODERS, longest)


def _shard_tree(tree: Any, mesh: AbstractMesh) -> Any:
    """Rows over the batch's axes; the heads of a cache [B, K, H, D] over `model` if it divides."""
    rows = batch_spec(mesh.axis_names, rank=1)[0]
    cores = mesh.shape.get("model", 1)

    def placed(leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        spec = PartitionSpec(rows) if leaf.ndim else PartitionSpec()
        if leaf.ndim == 4 and jnp.issubdtype(leaf.dtype, jnp.floating) and cores > 1:
            spec = PartitionSpec(rows, None, "model" if leaf.shape[2] % cores == 0 else None)
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=NamedSharding(mesh, spec))

    return jax.tree.map(placed, tree)


class _Shaped:
    """A model of shapes, for what depends on it alone."""

    def __init__(self, graph: nnx.GraphDef[Any], parameters: Parameters) -> None:
        self._graph, self._parameters = graph, parameters

    def shape_of(self, call: Callable[..., Any], *inputs: Any) -> Any:
        """The shapes of what a call of the model and `inputs` returns."""

        def run(params: Parameters, *given: Any) -> Any:
            return call(merge(self._graph, params), *given)

        return jax.eval_shape(run, self._parameters, *inputs)


def _array(*shape: int, dtype: Any = jnp.int32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def _next_token(model: Model, cache: Any, tokens: jax.Array, position: jax.Array) -> Any:
    """The likeliest next tokens, and the cache with `tokens` in it."""
    logits, cache = model.extend(tokens, cache, position)
    return cache, jnp.argmax(logits[:, -1], axis=-1).astype(jnp.int32)


def _prefill(model: Model, config: Any, size: Size) -> Step:
    def run(model: Model, tokens: jax.Array) -> Any:
        cache = model.init_cache(size.batch, size.length)
        return model.extend(tokens, cache, 0, last=size.length - 1)

    return Step(run, (_array(*size),), tokens=size.length)


def _decode(model: Model, config: Any, size: Size) -> Step:
    cache = model.shape_of(lambda model: model.init_cache(*size))
    return Step(_next_token, (cache, _array(size.batch, 1), _array()), tokens=1, kept=True)


def _encode_text(model: Model, config: Any, size: Size) -> Step:
    def run(model: Model, source: jax.Array, real: jax.Array) -> Any:
        return model.init_cache(*size, source=source, real=real)

    return Step(run, (_array(*size), _array(*size, dtype=jnp.bool_)), tokens=size.length)


def _encode_sound(model: Model, config: Any, size: Size) -> Step:
    def run(model: Model, features: jax.Array) -> Any:
        return model.init_cache(size.batch, config.max_seq_len, features=features)

    shape = (size.batch, 2 * config.max_source_len, config.num_mels)
    return Step(run, (_array(*shape, dtype=jnp.float32),))


def _read_images(model: Model, config: Any, size: Size) -> Step:
    """A text with one image in it."""

    def run(model: Model, tokens: jax.Array, pixels: jax.Array) -> Any:
        cache = model.init_cache(size.batch, size.length, pixels=pixels[:, None])
        logits, cache = model.extend(tokens, cache, 0, last=size.length - 1)
        return cache, logits

    inputs = (_array(*size), _pixels(config, size.batch))
    return Step(run, inputs, tokens=size.length)


def _decode_seen(model: Model, config: Any, size: Size) -> Step:
    source = _read_images(model, config, size)
    cache, _ = model.shape_of(source.run, *source.inputs)
    return Step(_next_token, (cache, _array(size.batch, 1), _array()), tokens=1, kept=True)


def _decode_after(
    encode: Callable[[Model, Any, Size], Step], model: Model, config: Any, size: Size
) -> Step:
    """The next token after what `encode` made of a source."""
    source = encode(model, config, size)
    cache = model.shape_of(source.run, *source.inputs)
    return Step(_next_token, (cache, _array(size.batch, 1), _array()), tokens=1, kept=True)


def _of_text(model: Model, config: Any, size: Size) -> Step:
    inputs = {"tokens": _array(*size)}
    if not hasattr(config, "num_kv_heads"):  # an encoder, which pads behind the text
        inputs["real"] = _array(*size, dtype=jnp.bool_)
    return Step(_call_with_names, (inputs,), tokens=size.length)


def _of_choices(model: Model, config: Any, size: Size) -> Step:
    shape = (size.batch, _CHOICES, size.length)
    inputs = {"tokens": _array(*shape), "real": _array(*shape, dtype=jnp.bool_)}
    return Step(_call_with_names, (inputs,), tokens=_CHOICES * size.length)


def _call_with_names(model: Model, inputs: Mapping[str, jax.Array]) -> Any:
    return model(**inputs)


def _pixels(config: Any, batch: int) -> jax.ShapeDtypeStruct:
    vision = getattr(config, "vision", None) or config
    size = getattr(vision, "image_size", None) or _IMAGE_SIZE
    height, width = (size, size) if isinstance(size, int) else size
    return _array(batch, height, width, vision.num_channels, dtype=jnp.float32)


def _of_image(model: Model, config: Any, size: Size) -> Step:
    return Step(lambda model, pixels: model(pixels), (_pixels(config, size.batch),))


def _features_of_image(model: Model, config: Any, size: Size) -> Step:
    return Step(lambda model, pixels: model.features(pixels), (_pixels(config, size.batch),))


def _sounds(config: Any, batch: int) -> jax.ShapeDtypeStruct:
    """Spectrograms of the model's size, or samples."""
    size = getattr(config, "spectrogram", (_SAMPLES,))
    return _array(batch, *size, dtype=jnp.float32)


def _of_sound(model: Model, config: Any, size: Size) -> Step:
    return Step(lambda model, sounds: model(sounds), (_sounds(config, size.batch),))


def _features_of_sound(model: Model, config: Any, size: Size) -> Step:
    return Step(lambda model, sounds: model.features(sounds), (_sounds(config, size.batch),))


def _of_series(model: Model, config: Any, size: Size) -> Step:
    known = _array(size.batch, config.context, config.num_channels, dtype=jnp.float32)
    return Step(lambda model, values: model(values), (known,))


def _prompts(config: Any, batch: int) -> jax.ShapeDtypeStruct:
    return _array(batch, config.text.max_seq_len)


def _of_prompt(model: Model, config: Any, size: Size) -> Step:
    return Step(lambda model, tokens: model.encode(tokens), (_prompts(config, size.batch),))


def _of_prompt_and_image(model: Model, config: Any, size: Size) -> Step:
    inputs = (_prompts(config, size.batch), _pixels(config, size.batch))
    return Step(lambda model, tokens, pixels: model(tokens, pixels), inputs)


def _control(model: Model, config: Any, size: Size) -> Step:
    step = _denoise(model, config, size)
    (inputs,) = step.inputs
    _, height, width, _ = inputs["latents"].shape
    sides = (height * config.reduction, width * config.reduction)
    image = _array(size.batch, *sides, config.image_channels, dtype=jnp.float32)
    return step._replace(inputs=({**inputs, "image": image},))


def _denoise(model: Model, config: Any, size: Size) -> Step:
    floats = partial(_array, size.batch, dtype=jnp.float32)
    inputs: dict[str, Any] = {
        "latents": floats(*config.sides, config.in_channels),
        "time": floats(),
        "context": floats(config.prompt_length, config.context_dim),
    }
    if config.pooled_dim is not None:
        inputs["pooled"] = floats(config.pooled_dim)
    if config.is_told_size:
        inputs["ids"] = floats(_IDS)
    if config.is_told_guidance:
        inputs["guidance"] = floats()
    return Step(_call_with_names, (inputs,))


def _decode_latents(model: Model, config: Any, size: Size) -> Step:
    side = config.sample_size // config.reduction
    latents = _array(size.batch, side, side, config.latent_channels, dtype=jnp.float32)
    return Step(lambda model, latents: model.decode(latents), (latents,))


STEPS: Mapping[str, Steps] = {
    "text-generation": {"prefill": _prefill, "decode": _decode},
    "text2text-generation": {
        "encode": _encode_text,
        "decode": partial(_decode_after, _encode_text),
    },
    "image-text-to-text": {"prefill": _read_images, "decode": _decode_seen},
    "automatic-speech-recognition": {
        "encode": _encode_sound,
        "decode": partial(_decode_after, _encode_sound),
    },
    "feature-extraction": {"forward": _of_text},
    "fill-mask": {"forward": _of_text},
    "question-answering": {"forward": _of_text},
    "text-classification": {"forward": _of_text},
    "token-classification": {"forward": _of_text},
    "multiple-choice": {"forward": _of_choices},
    "image-classification": {"forward": _of_image},
    "image-segmentation": {"forward": _of_image},
    "depth-estimation": {"forward": _of_image},
    "object-detection": {"forward": _of_image},
    "audio-classification": {"forward": _of_sound},
    "audio-feature-extraction": {"forward": _features_of_sound},
    "audio-frame-classification": {"forward": _of_sound},
    "audio-xvector": {"forward": _of_sound},
    "ctc-speech-recognition": {"forward": _of_sound},
    "time-series-forecasting": {"forward": _of_series},
    "image-feature-extraction": {"forward": _features_of_image},
    "zero-shot-image-classification": {"forward": _of_prompt_and_image},
    "prompt-encoding": {"forward": _of_prompt},
    "denoising": {"forward": _denoise},
    "image-control": {"forward": _control},
    "image-autoencoding": {"decode": _decode_latents},
}
"""Task of an architecture -> its phases."""
