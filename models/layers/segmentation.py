"""Small convolutional networks that label the image or every place of it."""

from abc import abstractmethod
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from flax import nnx

from models.layers.classifier import classify
from models.layers.conv_norm import ConvNorm
from models.layers.feature_map import FeatureMap, mean_of_places
from models.layers.image_model import ImageModel
from models.layers.linear import Linear


class SegmentationHead(nnx.Module):
    """Labels of every place, from windows of several sizes and from the mean of the image. Chen et
    al., "Rethinking Atrous Convolution", 2017.

    `conv_norm` makes a ConvNorm of channels before and after, a window and settings.
    """

    def __init__(
        self,
        conv_norm: Callable[..., ConvNorm],
        channels: tuple[int, int],
        classifier: Linear | None,
        *,
        dilations: Sequence[int] = (),
        mean_first: bool = False,
    ) -> None:
        _, after = channels
        self.mean_first = mean_first
        self.windows = nnx.List(
            [conv_norm(*channels, 1), *(conv_norm(*channels, 3, dilation=d) for d in dilations)]
        )
        self.pool = conv_norm(*channels, 1)
        self.projection = conv_norm((len(self.windows) + 1) * after, after, 1)
        self.classifier = classifier

    def __call__(self, x: jax.Array, *, train: bool) -> jax.Array:
        """x [B, H, W, C] -> [B, H, W, L]."""
        mean = self.pool(jnp.mean(x, axis=(1, 2), keepdims=True), train=train)
        seen = [window(x, train=train) for window in self.windows]
        parts = [*seen, jnp.broadcast_to(mean, seen[0].shape)]
        parts = parts[-1:] + parts[:-1] if self.mean_first else parts
        both = self.projection(jnp.concatenate(parts, axis=-1), train=train)
        return classify(self.classifier, both)


class Labeller(ImageModel):
    """Images to feature maps, and to logits of the image or of every place if there are labels."""

    last: ConvNorm | None
    segmentation: SegmentationHead | None

    @abstractmethod
    def places(self, x: jax.Array, *, train: bool) -> jax.Array:
        """Images [B, H, W, C] -> [B, H', W', C'] before the last convolution."""

    def see(self, x: jax.Array, *, train: bool) -> FeatureMap:
        x = self.places(x, train=train)
        x = x if self.last is None else self.last(x, train=train)
        return FeatureMap(x, mean_of_places(x))

    def __call__(self, pixels: jax.Array, *, train: bool = False) -> jax.Array:
        """Logits, FP32, of pixels [B, H, W, C]: [B, L], or [B, H', W', L] of a smaller image."""
        if self.segmentation is None:
            return super().__call__(pixels, train=train)
        return self.segmentation(self.places(self.checked(pixels), train=train), train=train)
