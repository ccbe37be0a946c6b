"""What models share that see an image as a whole."""

from abc import abstractmethod
from typing import Any

import jax
from flax import nnx

from models.layers.classifier import classify
from models.layers.feature_map import FeatureMap
from models.layers.linear import Linear
from models.layers.pixels import check_pixels


class ImageModel(nnx.Module):
    """Images to features, and to logits if the config has labels."""

    config: Any
    classifier: Linear | None

    @abstractmethod
    def see(self, x: jax.Array, *, train: bool) -> FeatureMap:
        """The features of images [B, H, W, C].

        With `train`, batch norms use the statistics of the batch and move the running ones.
        """

    def features(self, pixels: jax.Array, *, train: bool = False) -> FeatureMap:
        """The features of pixels [B, H, W, C], which have the config's size if it has one; `train`
        as in `see`."""
        return self.see(self.checked(pixels), train=train)

    def __call__(self, pixels: jax.Array, *, train: bool = False) -> jax.Array:
        """Logits [B, L] of pixels [B, H, W, C], FP32; arguments as of `features`."""
        return self.labelled(self.features(pixels, train=train).pooled, train=train)

    def labelled(self, pooled: jax.Array, *, train: bool) -> jax.Array:
        """Logits of what is pooled."""
        return classify(self.classifier, pooled)

    def checked(self, pixels: jax.Array) -> jax.Array:
        """Pixels in the dtype of activations. Raises InputError if they have another size than the
        config, or other channels."""
        check_pixels(pixels, self.config.image_size, self.config.num_channels)
        return pixels.astype(self.config.dtype)
