"""Gong et al., "AST: Audio Spectrogram Transformer", 2021.

Axis names: B batch, F frames, M mel bands, D model width, L labels.
"""

from dataclasses import dataclass, field

import jax
from flax import nnx

from models.layers.classifier import classify
from models.layers.factory import LayerFactory
from models.layers.feature_map import ImageFeatures
from models.layers.pixels import check_spectrograms
from models.settings import ModelConfig
from models.vit.config import ViTConfig
from models.vit.model import ViT


@dataclass(frozen=True)
class ASTConfig(ModelConfig):
    """The backbone sees mel bands as rows and frames as columns of an image of one channel."""

    backbone: ViTConfig = field(default_factory=ViTConfig)
    num_labels: int | None = None  # None = no classifier

    @property
    def spectrogram(self) -> tuple[int, int]:
        """Frames and mel bands."""
        bands, frames = self.backbone.image_size
        return frames, bands


class AST(nnx.Module):
    """Spectrograms to features, and to logits if the config has labels."""

    def __init__(self, config: ASTConfig, *, rngs: nnx.Rngs) -> None:
        self.config = config
        self.backbone = ViT(config.backbone, rngs=rngs)
        labels = config.num_labels
        self.norm = None if labels is None else config.backbone.block.norm()
        make = LayerFactory.of(config.backbone, rngs)
        self.classifier = make.classifier(config.backbone.dim, labels)

    def __call__(self, sounds: jax.Array) -> jax.Array:
        """Logits [B, L] of spectrograms [B, F, M], FP32."""
        pooled = self.features(sounds).pooled
        assert pooled is not None
        return classify(self.classifier, pooled if self.norm is None else self.norm(pooled))

    def features(self, sounds: jax.Array) -> ImageFeatures:
        """The features of spectrograms [B, F, M] of the config's size; the pooled ones are the mean
        of both tokens in front of the patches."""
        check_spectrograms(sounds, *self.config.spectrogram)
        hidden = self.backbone.features(sounds.swapaxes(1, 2)[..., None]).hidden
        return ImageFeatures(hidden, (hidden[:, 0] + hidden[:, 1]) / 2)
