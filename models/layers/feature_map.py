"""What convolutional backbones put out."""

from typing import NamedTuple

import jax


class FeatureMap(NamedTuple):
    """The outputs of a backbone."""

    hidden: jax.Array  # [B, H', W', C] of the last stage
    pooled: jax.Array  # [B, C], its mean over the image
