"""Models of speech: a backbone, and heads that find letters, classes or speakers in its frames.

Axis names: B batch, N samples, T frames, D model width, V letters, L labels, X numbers of a vector.
"""

from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from models.errors import ConfigError
from models.layers.factory import LayerFactory
from models.layers.linear import Linear
from models.wav2vec2.backbone import SpeechBackbone
from models.wav2vec2.config import SpeechConfig

_MARGIN, _SCALE = 0.4, 30.0  # Wang et al., "Additive Margin Softmax", 2018


class SpeechFeatures(NamedTuple):
    """What a backbone puts out."""

    hidden: jax.Array  # [B, T, D]


class SpeakerFeatures(NamedTuple):
    """What a model of speakers puts out."""

    embedding: jax.Array  # [B, X], the x-vector, FP32
    logits: jax.Array  # [B, X], from which training tells speakers, FP32


class SpeechModel(nnx.Module):
    """Sounds to the features of their frames."""

    def __init__(self, config: SpeechConfig, *, rngs: nnx.Rngs) -> None:
        self.config = config
        self.backbone = SpeechBackbone(config, rngs=rngs)

    def features(self, sounds: jax.Array) -> SpeechFeatures:
        """The features of sounds [B, N]."""
        return SpeechFeatures(self.backbone(sounds))

    def _linear(self, in_dim: int, out_axes: dict[str, int], rngs: nnx.Rngs) -> Linear:
        return LayerFactory.of(self.config, rngs).dense({"dim": in_dim}, out_axes)


class SpeechRecognizer(SpeechModel):
    """A letter, or none, for every frame. Graves et al., "Connectionist Temporal Classification",
    2006."""

    def __init__(self, config: SpeechConfig, *, rngs: nnx.Rngs) -> None:
        super().__init__(config, rngs=rngs)
        self.letters = self._linear(config.output_dim, {"vocab": _given(config.vocab_size)}, rngs)

    def __call__(self, sounds: jax.Array, frames: jax.Array | None = None) -> jax.Array:
        """Logits FP32 [B, T, V] of sounds [B, N], of each of which the first `frames` [B] frames
        are sound."""
        return self.letters(self.backbone(sounds, frames)).astype(jnp.float32)


class _FrameReader(SpeechModel):
    """The frames of the last layer, or a learnt mean of all layers."""

    def __init__(self, config: SpeechConfig, *, rngs: nnx.Rngs) -> None:
        super().__init__(config, rngs=rngs)
        count = config.num_layers + 1
        make = LayerFactory.of(config, rngs)
        self.layer_scores = (
            make.constant(1 / count, states=count) if config.weighted_layers else None
        )

    def _frames(self, sounds: jax.Array, frames: jax.Array | None = None) -> jax.Array:
        if self.layer_scores is None:
            return self.backbone(sounds, frames)
        states = jnp.stack(self.backbone.layers(sounds, frames))  # [layers + 1, B, T, D]
        weights = jax.nn.softmax(self.layer_scores[...].astype(jnp.float32))
        return jnp.tensordot(weights.astype(states.dtype), states, axes=1)


class SoundClassifier(_FrameReader):
    """The class of a sound, from the mean of its frames."""

    def __init__(self, config: SpeechConfig, *, rngs: nnx.Rngs) -> None:
        super().__init__(config, rngs=rngs)
        inside = _given(config.classifier_dim)
        self.projector = self._linear(config.dim, {"features": inside}, rngs)
        self.classifier = self._linear(inside, {"label": _given(config.num_labels)}, rngs)

    def __call__(self, sounds: jax.Array, frames: jax.Array | None = None) -> jax.Array:
        """Logits FP32 [B, L] of sounds [B, N], of each of which the first `frames` [B] frames are
        sound."""
        projected = self.projector(self._frames(sounds, frames))
        length = projected.shape[1]
        count = jnp.full(projected.shape[:1], length) if frames is None else frames
        real = (jnp.arange(length) < count[:, None])[..., None]
        total = jnp.sum(projected.astype(jnp.float32), axis=1, where=real)
        mean = total / jnp.maximum(count, 1)[:, None]  # a row that does not count has no frames
        return self.classifier(mean.astype(projected.dtype)).astype(jnp.float32)


class FrameClassifier(_FrameReader):
    """The classes of every frame, such as who speaks."""

    def __init__(self, config: SpeechConfig, *, rngs: nnx.Rngs) -> None:
        super().__init__(config, rngs=rngs)
        self.classifier = self._linear(config.dim, {"label": _given(config.num_labels)}, rngs)

    def __call__(self, sounds: jax.Array) -> jax.Array:
        """Logits FP32 [B, T, L] of sounds [B, N]."""
        return self.classifier(self._frames(sounds)).astype(jnp.float32)


class SpeakerModel(_FrameReader):
    """A vector that is the same for all that a speaker says. Snyder et al., "X-Vectors", 2018."""

    def __init__(self, config: SpeechConfig, *, rngs: nnx.Rngs) -> None:
        super().__init__(config, rngs=rngs)
        size, channels = _given(config.xvector_dim), config.tdnn_channels
        self.projector = self._linear(config.output_dim, {"features": channels[0]}, rngs)
        make = LayerFactory.of(config, rngs)
        layers = zip(
            (channels[0], *channels),
            channels,
            config.tdnn_windows,
            config.tdnn_dilations,
            strict=False,
        )
        self.tdnn = nnx.List(
            [
                make.conv(before, width, (window,), dilation=step, axes=("channels", "residual"))
                for before, width, window, step in layers
            ]
        )
        self.embedding = self._linear(2 * channels[-1], {"features": size}, rngs)
        self.classifier = self._linear(size, {"features": size}, rngs)
        speakers = {"label": _given(config.num_labels)}
        self.speakers = replace(make, stddev=1.0).dense({"features": size}, speakers, bias=False)

    def __call__(self, sounds: jax.Array) -> SpeakerFeatures:
        """The x-vectors of the speakers of sounds [B, N], and their logits."""
        x = self.projector(self._frames(sounds))
        for layer in self.tdnn:
            x = jax.nn.relu(layer(x))
        x32 = x.astype(jnp.float32)
        mean = jnp.mean(x32, axis=1, keepdims=True)
        variance = jnp.sum(jnp.square(x32 - mean), axis=1) / (x.shape[1] - 1)
        # The root has no derivative at 0, where ReLU leaves channels that are silent throughout.
        varies = variance > 0
        deviation = jnp.where(varies, jnp.sqrt(jnp.where(varies, variance, 1)), 0)
        pooled = jnp.concatenate([mean[:, 0], deviation], axis=-1).astype(x.dtype)
        embedding = self.embedding(pooled)
        logits = self.classifier(embedding)
        return SpeakerFeatures(embedding.astype(jnp.float32), logits.astype(jnp.float32))

    def loss(self, logits: jax.Array, labels: jax.Array) -> jax.Array:
        """The mean loss of the speakers `labels` [B], from `logits` [B, X]: cross entropy of scaled
        cosines, that of the right speaker less a margin."""
        kernel = self.speakers.kernel[...].astype(jnp.float32)
        cosines = _unit(logits, -1) @ _unit(kernel, 0)
        right = jax.nn.one_hot(labels, cosines.shape[-1])
        scores = jax.nn.log_softmax(_SCALE * (cosines - _MARGIN * right))
        return -jnp.mean(jnp.sum(right * scores, axis=-1))


def _unit(x: jax.Array, axis: int) -> jax.Array:
    """Vectors of length 1 along the axis."""
    return x * jax.lax.rsqrt(jnp.maximum(jnp.sum(x * x, axis=axis, keepdims=True), 1e-24))


def _given(size: int | None) -> int:
    if size is None:
        raise ConfigError("the config lacks a size of this model's head; give them all")
    return size
