"""Ren et al., "Faster R-CNN", 2015, on a feature pyramid (Lin et al., 2017), as torchvision has it.

A first stage proposes regions of an image, a second one looks at each of them. Axis names: B batch,
H height, W width, C channels, A anchors of an image, R proposals, L labels, D objects.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from models.detector.boxes import anchors, clipped, greatest, longer_than, suppressed, with_steps
from models.detector.config import RATIOS, DetectorConfig
from models.detector.regions import pooled
from models.errors import InputError
from models.layers.factory import LayerFactory
from models.layers.pixels import check_pixels
from models.resnet.model import ResNet

_STDDEV = 0.01
_STEM_STRIDE = 4  # of the first convolution and the pooling after it
_SHORTEST_PROPOSAL, _SHORTEST_OBJECT = 1e-3, 1e-2  # in pixels
_OF_PROPOSALS, _OF_OBJECTS = (1.0, 1.0), (10.0, 5.0)  # weights of steps


class Objects(NamedTuple):
    """What is in each image, by falling scores. Where there are fewer, labels are 0."""

    boxes: jax.Array  # [B, D, 4]: left, top, right, bottom, in pixels
    scores: jax.Array  # [B, D], FP32
    labels: jax.Array  # int32 [B, D]


class Proposals(NamedTuple):
    """Regions of each image."""

    boxes: jax.Array  # [B, R, 4]
    real: jax.Array  # bool [B, R]: False where there are fewer


class Pyramid(nnx.Module):
    """The stages' feature maps with the same channels, each with what the coarser ones see; and one
    more, of every second place of the coarsest."""

    def __init__(self, config: DetectorConfig, make: LayerFactory) -> None:
        widths = config.backbone.stage_channels
        self.inwards = nnx.List([make.conv(width, config.dim, 1) for width in widths])
        self.outwards = nnx.List([make.conv(config.dim, config.dim, 3, padding=1) for _ in widths])

    def __call__(self, maps: list[jax.Array]) -> list[jax.Array]:
        x = self.inwards[-1](maps[-1])
        levels = [self.outwards[-1](x)]
        for i in reversed(range(len(maps) - 1)):
            here = self.inwards[i](maps[i])
            x = here + jax.image.resize(x, here.shape, "nearest")
            levels.insert(0, self.outwards[i](x))
        return [*levels, levels[-1][:, ::2, ::2]]


class Proposer(nnx.Module):
    """The first stage: for every anchor, how likely it is an object, and how it should move."""

    def __init__(self, config: DetectorConfig, make: LayerFactory) -> None:
        self.conv = make.conv(config.dim, config.dim, 3, padding=1)
        self.score = make.conv(config.dim, len(RATIOS), 1)
        self.step = make.conv(config.dim, 4 * len(RATIOS), 1)

    def __call__(self, level: jax.Array) -> tuple[jax.Array, jax.Array]:
        """A level [B, H, W, C] -> scores [B, A] and steps [B, A, 4]."""
        x = jax.nn.relu(self.conv(level))
        count = len(level)
        return self.score(x).reshape(count, -1), self.step(x).reshape(count, -1, 4)


class Detector(nnx.Module):
    """Images to the objects in them."""

    def __init__(self, config: DetectorConfig, *, rngs: nnx.Rngs) -> None:
        self.config = config
        self.backbone = ResNet(config.backbone, rngs=rngs)
        make = LayerFactory(_STDDEV, config.backbone.param_dtype, rngs)
        self.pyramid = Pyramid(config, make)
        self.proposer = Proposer(config, make)
        region, hidden = config.dim * config.pooled_size**2, config.hidden_dim
        self.hidden_1 = make.dense({"dim": region}, {"hidden_dim": hidden})
        self.hidden_2 = make.dense({"hidden_dim": hidden}, {"dim": hidden})
        self.score = make.dense({"dim": hidden}, {"label": config.num_labels})
        self.step = make.dense({"dim": hidden}, {"label": config.num_labels, "edge": 4})

    def __call__(self, pixels: jax.Array) -> Objects:
        """The objects in pixels [B, H, W, C], normalised as the backbone wants them.

        Raises InputError unless each level has half the height and width of the one before.
        """
        check_pixels(pixels, None, self.config.backbone.num_channels)
        _, height, width, _ = pixels.shape
        multiple = _STEM_STRIDE << (len(self.config.backbone.stage_channels) - 1)
        if height % multiple or width % multiple:
            raise InputError(
                f"the image has sides of {height} x {width} pixels, but both must be multiples of "
                f"{multiple}: pad it with zeros"
            )
        levels = self.pyramid(self.backbone.maps(self.backbone.checked(pixels)))
        return self.objects(levels, self.propose(levels, (height, width)), (height, width))

    def propose(self, levels: list[jax.Array], image: tuple[int, int]) -> Proposals:
        """The regions that the first stage proposes in images of this height and width."""
        config = self.config
        scores, boxes, groups = [], [], []
        for number, (level, size) in enumerate(zip(levels, config.anchor_sizes, strict=True)):
            score, step = self.proposer(level)
            _, height, width, _ = level.shape
            at = jnp.asarray(anchors((height, width), image, size, RATIOS))
            score, best = greatest(score, min(config.level_proposals, score.shape[1]))
            step = jnp.take_along_axis(step, best[..., None], axis=1).astype(jnp.float32)
            scores.append(jax.nn.sigmoid(score.astype(jnp.float32)))
            boxes.append(clipped(with_steps(at[best], step, _OF_PROPOSALS), *image))
            groups.append(jnp.full(score.shape[1], number))
        every = jnp.concatenate(groups)

        def choose(boxes: jax.Array, scores: jax.Array) -> Proposals:
            scores = jnp.where(longer_than(boxes, _SHORTEST_PROPOSAL), scores, -1.0)
            scores, order = jax.lax.top_k(scores, len(scores))
            boxes = boxes[order]
            dropped = suppressed(boxes, every[order], scores >= 0, config.proposal_overlap)
            left = jnp.where(dropped, -1.0, scores)
            left, best = jax.lax.top_k(left, min(config.num_proposals, len(left)))
            return Proposals(boxes[best], left >= 0)

        return jax.vmap(choose)(jnp.concatenate(boxes, axis=1), jnp.concatenate(scores, axis=1))

    def objects(
        self, levels: list[jax.Array], proposals: Proposals, image: tuple[int, int]
    ) -> Objects:
        """What the second stage makes of the proposals."""
        config = self.config
        regions = pooled(levels[:-1], proposals.boxes, image, config.pooled_size)
        x = jax.nn.relu(self.hidden_1(regions.reshape(*regions.shape[:2], -1)))
        x = jax.nn.relu(self.hidden_2(x))
        chances = jax.nn.softmax(self.score(x).astype(jnp.float32), axis=-1)
        steps = self.step(x).astype(jnp.float32)
        stepped = with_steps(proposals.boxes[:, :, None], steps, _OF_OBJECTS)
        boxes = clipped(stepped, *image)[:, :, 1:]  # label 0 is none
        real = proposals.real[..., None] & (chances[..., 1:] > config.least_score)
        return jax.vmap(self._choose)(boxes, chances[..., 1:], real)

    def _choose(self, boxes: jax.Array, chances: jax.Array, real: jax.Array) -> Objects:
        """The objects of an image: boxes [R, L - 1, 4], chances and whether they count [R, L -
        1]."""
        config = self.config
        scores = jnp.where(real & longer_than(boxes, _SHORTEST_OBJECT), chances, -1.0)
        # The chances of a region add up to 1: no more of them are above the least score.
        most = min(scores.shape[1], int(1 / config.least_score))
        scores, labels = jax.lax.top_k(scores, most)
        scores, best = greatest(scores.reshape(-1), min(config.num_candidates, scores.size))
        labels = labels.reshape(-1)[best]
        boxes, labels = boxes[best // most, labels], labels + 1
        dropped = suppressed(boxes, labels, scores > 0, config.object_overlap)
        scores = jnp.where(dropped, 0.0, scores)
        scores, best = jax.lax.top_k(scores, min(config.num_objects, len(scores)))
        return Objects(boxes[best], scores, jnp.where(scores > 0, labels[best], 0))
