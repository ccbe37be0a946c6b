"""The vision transformer (Dosovitskiy et al., "An Image is Worth 16x16 Words", 2021), and DeiT,
which learns from a teacher through a token of its own (Touvron et al., 2021), and BEiT, whose
attention knows distances (Bao et al., 2022).

Axis names: B batch, H height, W width, C channels, T tokens, D model width, L labels.
"""

from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx

from models.layers.activations import activation
from models.layers.blocks import Block
from models.layers.classifier import classify
from models.layers.embedding import in_front
from models.layers.factory import LayerFactory
from models.layers.feature_map import ImageFeatures
from models.layers.pixels import check_pixels
from models.vit.config import ViTConfig


class ViT(nnx.Module):
    """Images to features, and to logits if the config has labels."""

    def __init__(self, config: ViTConfig, *, rngs: nnx.Rngs) -> None:
        self.config = config
        make, dim, size = LayerFactory.of(config, rngs), config.dim, config.patch_size
        self.patches = make.conv(config.num_channels, dim, size, stride=config.stride or size)
        self.class_token = make.table(image=1, tokens=1, dim=dim)
        self.distillation_token = (
            make.table(image=1, tokens=1, dim=dim) if config.distilled else None
        )
        tokens = config.num_patches + config.num_extra_tokens
        self.positions = (
            make.table(image=1, tokens=tokens, dim=dim) if config.absolute_positions else None
        )
        bias = partial(config.block.window_bias, rngs, config.window, class_token=True)
        biases = config.num_layers if config.relative_positions else 0
        self.relative = nnx.List([bias() for _ in range(biases)])
        self.shared_relative = bias() if config.shared_positions else None
        self.blocks = nnx.List([Block(config.block, rngs=rngs) for _ in range(config.num_layers)])
        self.norm = None if config.pooling == "none" else config.block.norm()
        self.pooler = make.classifier(dim, config.pooler_dim)
        labels = config.num_labels
        self.classifier = make.classifier(dim, labels)
        taught = labels if config.distilled_classifier else None
        self.distilled_classifier = make.classifier(dim, taught)

    def __call__(self, pixels: jax.Array) -> jax.Array:
        """Logits [B, L] of pixels [B, H, W, C], FP32; the mean of both classifiers if there are
        two."""
        heads = [logits for logits in self.head_logits(pixels) if logits is not None]
        return sum(heads[1:], heads[0]) / len(heads)

    def head_logits(self, pixels: jax.Array) -> tuple[jax.Array, jax.Array | None]:
        """Logits [B, L] of the class token's and of the distillation token's classifier."""
        hidden, pooled = self.features(pixels)
        summary = hidden[:, 0] if self.config.pooling is None or pooled is None else pooled
        own = classify(self.classifier, summary)
        if self.distilled_classifier is None:
            return own, None
        return own, classify(self.distilled_classifier, hidden[:, 1])

    def features(self, pixels: jax.Array) -> ImageFeatures:
        """The features of pixels [B, H, W, C], which have the config's size."""
        config = self.config
        x = self.block_outputs(pixels)[-1]
        if self.norm is None:
            return ImageFeatures(x, None)
        if config.pooling == "mean":
            mean = jnp.mean(x[:, 1:].astype(jnp.float32), axis=1)
            return ImageFeatures(x, self.norm(mean.astype(x.dtype)))
        hidden = self.norm(x)
        if config.pooling == "first":
            return ImageFeatures(hidden, hidden[:, 0])
        if self.pooler is None:
            return ImageFeatures(hidden, None)
        return ImageFeatures(hidden, activation(config.pooler_act)(self.pooler(hidden[:, 0])))

    def block_outputs(self, pixels: jax.Array) -> list[jax.Array]:
        """What every block makes of pixels [B, H, W, C]: [B, T, D] each, after no norm."""
        config = self.config
        check_pixels(pixels, config.image_size, config.num_channels)
        patches = self.patches(pixels.astype(config.dtype))
        patches = patches.reshape(patches.shape[0], -1, config.dim)
        x = in_front(patches, self.class_token, self.distillation_token)
        if self.positions is not None:
            x = x + self.positions[...].astype(patches.dtype)
        outputs = []
        for block, bias in zip(self.blocks, self._biases(), strict=True):
            x = block(x, bias=bias)
            outputs.append(x)
        return outputs

    @property
    def stacks(self) -> bool:
        """Whether blocks that are alike may run as one stack: a bias of their own may not be
        outside of it."""
        return not self.relative

    def _biases(self) -> list[jax.Array | None]:
        """The biases of the scores, for each block."""
        shared = None if self.shared_relative is None else self.shared_relative()
        if not self.relative:
            return [shared] * len(self.blocks)
        return [own() if shared is None else own() + shared for own in self.relative]
