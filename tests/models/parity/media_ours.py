"""Our side of heads on images and sound."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from models.losses import cross_entropy

Outputs = Mapping[str, jax.Array]


def squares(*outputs: jax.Array) -> jax.Array:
    """A loss for outputs that have none of their own."""
    return sum((jnp.mean(jnp.square(output)) for output in outputs), jnp.zeros(()))


def _image_classification(model: Any, pixels: jax.Array, labels: jax.Array) -> Outputs:
    logits = model(pixels)
    return {"logits": logits, "loss": jnp.mean(cross_entropy(logits, labels))}


def _image_features(model: Any, pixels: jax.Array) -> Outputs:
    features = model.features(pixels)
    return {**features._asdict(), "loss": squares(*features)}


def _image_segmentation(model: Any, pixels: jax.Array) -> Outputs:
    logits = model(pixels)
    return {"logits": logits, "loss": squares(logits)}


def _depth_estimation(model: Any, pixels: jax.Array) -> Outputs:
    depths = model(pixels)
    return {"depths": depths, "loss": squares(depths)}


def _object_detection(model: Any, pixels: jax.Array) -> Outputs:
    logits, boxes = model(pixels)
    return {"logits": logits, "boxes": boxes, "loss": squares(logits, boxes)}


def _sound_logits(model: Any, pixels: jax.Array) -> Outputs:
    logits = model(pixels)
    return {"logits": logits, "loss": squares(logits)}


def _xvector(model: Any, pixels: jax.Array, labels: jax.Array) -> Outputs:
    features = model(pixels)
    return {**features._asdict(), "loss": model.loss(features.logits, labels)}


def _forecasting(model: Any, values: jax.Array) -> Outputs:
    forecast = model(values)
    return {"forecast": forecast, "loss": squares(forecast)}


def _zero_shot(model: Any, tokens: jax.Array, pixels: jax.Array) -> Outputs:
    logits = model(tokens, pixels)
    pairs = jnp.arange(len(logits))
    losses = cross_entropy(logits, pairs) + cross_entropy(logits.T, pairs)
    return {"logits": logits, "loss": jnp.mean(losses) / 2}


def _prompt_encoding(model: Any, tokens: jax.Array) -> Outputs:
    features = model.encode(tokens)
    return {**features._asdict(), "loss": squares(*features)}


def _image_text_to_text(model: Any, tokens: jax.Array, pixels: jax.Array) -> Outputs:
    logits = model(tokens, pixels)
    return {"logits": logits, "loss": jnp.mean(cross_entropy(logits[:, :-1], tokens[:, 1:]))}


def _speech_recognition(model: Any, features: jax.Array, tokens: jax.Array) -> Outputs:
    logits = model(features, tokens[:, :-1])
    return {"logits": logits, "loss": jnp.mean(cross_entropy(logits, tokens[:, 1:]))}


def _denoising(model: Any, **inputs: jax.Array) -> Outputs:
    prediction = model(**inputs)
    return {"prediction": prediction, "loss": squares(prediction)}


def _image_control(model: Any, scale: jax.Array, **inputs: jax.Array) -> Outputs:
    control = model(**inputs, scale=scale[0])
    ends = [*control.skips, control.middle]
    return {**{f"end {i}": end for i, end in enumerate(ends)}, "loss": squares(*ends)}


def _image_autoencoding(model: Any, pixels: jax.Array, latents: jax.Array) -> Outputs:
    outputs = model.encode(pixels)._asdict() | {"decoded": model.decode(latents)}
    return {**outputs, "loss": squares(*outputs.values())}


HEADS: Mapping[str, Callable[..., Outputs]] = {
    "image-classification": _image_classification,
    "image-feature-extraction": _image_features,
    "image-segmentation": _image_segmentation,
    "depth-estimation": _depth_estimation,
    "object-detection": _object_detection,
    "audio-classification": _image_classification,
    "audio-feature-extraction": _image_features,
    "ctc-speech-recognition": _sound_logits,
    "audio-frame-classification": _sound_logits,
    "audio-xvector": _xvector,
    "time-series-forecasting": _forecasting,
    "zero-shot-image-classification": _zero_shot,
    "image-text-to-text": _image_text_to_text,
    "prompt-encoding": _prompt_encoding,
    "automatic-speech-recognition": _speech_recognition,
    "denoising": _denoising,
    "image-control": _image_control,
    "image-autoencoding": _image_autoencoding,
}
