"""Dimensions and constants of Wav2Vec2 and its relatives, and of their heads."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import jax

from models.common_settings import TransformerConfig
from models.errors import ConfigError
from models.layers.blocks import BlockShape
from models.settings import check_multiple, setting

CONV_NORMS = ("group", "layer")
Frames = TypeVar("Frames", int, jax.Array)


@dataclass(frozen=True)
class SpeechConfig(TransformerConfig):
    """Every dimension and constant; the default is Wav2Vec2-Base without a head.

    Raises ConfigError if the dimensions do not fit together.
    """

    conv_channels: tuple[int, ...] = setting("conv_dim", default=(512,) * 7)
    conv_windows: tuple[int, ...] = setting("conv_kernel", default=(10, 3, 3, 3, 3, 2, 2))
    conv_strides: tuple[int, ...] = setting("conv_stride", default=(5, 2, 2, 2, 2, 2, 2))
    conv_bias: bool = setting("conv_bias", default=False)
    conv_norm: str = setting("feat_extract_norm", default="group")
    conv_act: str = setting("feat_extract_activation", default="gelu")
    feature_norm: bool = setting("feat_proj_layer_norm", default=True)
    position_window: int = setting("num_conv_pos_embeddings", default=128)
    position_groups: int = setting("num_conv_pos_embedding_groups", default=16)
    position_batch_norm: bool = setting("conv_pos_batch_norm", default=False)
    act: str = setting("hidden_act", default="gelu")
    norm_eps: float = setting("layer_norm_eps", default=1e-5)
    pre_norm: bool = setting("do_stable_layer_norm", default=False)
    num_buckets: int | None = setting("num_buckets", default=None)
    max_distance: int = setting("max_bucket_distance", default=800)
    block_adapter_dim: int | None = setting("adapter_attn_dim", default=None)
    output_adapter: bool = setting("add_adapter", default=False)
    adapter_layers: int = setting("num_adapter_layers", default=3)
    adapter_window: int = setting("adapter_kernel_size", default=3)
    adapter_stride: int = setting("adapter_stride", default=2)
    adapter_dim: int | None = setting("output_hidden_size", default=None)
    weighted_layers: bool = setting("use_weighted_layer_sum", default=False)
    vocab_size: int | None = setting("vocab_size", default=None)
    num_labels: int | None = None  # of sounds, frames or speakers
    classifier_dim: int | None = setting("classifier_proj_size", default=None)
    tdnn_channels: tuple[int, ...] = setting("tdnn_dim", default=())
    tdnn_windows: tuple[int, ...] = setting("tdnn_kernel", default=())
    tdnn_dilations: tuple[int, ...] = setting("tdnn_dilation", default=())
    xvector_dim: int | None = setting("xvector_output_dim", default=None)

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_lengths("conv", self.conv_channels, self.conv_windows, self.conv_strides)
        _check_lengths("tdnn", self.tdnn_channels, self.tdnn_windows, self.tdnn_dilations)
        if not self.conv_channels or self.conv_norm not in CONV_NORMS:
            raise ConfigError(
                f"conv_norm={self.conv_norm!r} and {len(self.conv_channels)} convolutions are "
                f"given, but conv_norm must be one of {', '.join(CONV_NORMS)}, with at least one "
                "convolution"
            )
        check_multiple(self, "dim", "position_groups")
        if self.block_adapter_dim is not None and not self.pre_norm:
            raise ConfigError(
                f"block_adapter_dim={self.block_adapter_dim} needs pre_norm=True: blocks with "
                "norms behind have no adapters"
            )
        if self.num_buckets is not None and not 4 <= self.num_buckets <= 2 * self.max_distance:
            raise ConfigError(
                f"num_buckets={self.num_buckets} must be from 4 to twice "
                f"max_distance={self.max_distance}"
            )

    @property
    def block(self) -> BlockShape:
        """The shape of a transformer block."""
        return BlockShape.of(self)

    @property
    def stride(self) -> int:
        """Samples from one frame to the next."""
        samples = 1
        for stride in self.conv_strides:
            samples *= stride
        return samples

    @property
    def output_dim(self) -> int:
        """The width of what the backbone puts out."""
        return (self.output_adapter and self.adapter_dim) or self.dim

    def outputs(self, frames: Frames) -> Frames:
        """How many vectors the backbone makes of so many frames."""
        for _ in range(self.adapter_layers if self.output_adapter else 0):
            frames = (frames + 2 - self.adapter_window) // self.adapter_stride + 1
        return frames

    def frames(self, samples: int) -> int:
        """The number of frames of a sound."""
        for window, stride in zip(self.conv_windows, self.conv_strides, strict=True):
            samples = (samples - window) // stride + 1
        return max(samples, 0)

    @property
    def shortest(self) -> int:
        """Samples of the shortest sound, from which there is a frame; two for an x-vector."""
        frames = 1 if self.xvector_dim is None else 2
        for window, dilation in zip(self.tdnn_windows, self.tdnn_dilations, strict=True):
            frames += dilation * (window - 1)
        for window, stride in zip(self.conv_windows[::-1], self.conv_strides[::-1], strict=True):
            frames = (frames - 1) * stride + window
        return frames


def _check_lengths(name: str, *lists: Sequence[int]) -> None:
    lengths = [len(values) for values in lists]
    if len(set(lengths)) > 1:
        raise ConfigError(
            f"the lists for {name} layers must have equal lengths, but they have {lengths}"
        )
