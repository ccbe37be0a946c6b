"""Adapters of speech models: narrow maps behind every block, and convolutions behind them all.

Pratap et al., "Scaling Speech Technology to 1,000+ Languages", 2023: each language has maps and
letters of its own, which stand in a file beside the model's.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
from flax import nnx

from models.errors import WeightsError
from models.layers.factory import LayerFactory
from models.wav2vec2.config import SpeechConfig
from models.wav2vec2.letters import TOKENIZER_FILE, read_language
from models.weights.pickled import read_pickled
from models.weights.safetensors import StoredTensor, read_header

_EPS = 1e-5  # of their norms


class BlockAdapter(nnx.Module):
    """up(relu(down(norm(x)))), which is added to what a block puts out."""

    def __init__(self, config: SpeechConfig, width: int, *, rngs: nnx.Rngs) -> None:
        make = LayerFactory.of(config, rngs)
        self.norm = make.layer_norm(config.dim, _EPS)
        self.down = make.linear(config.dim, width, axes=("dim", "features"))
        self.up = make.linear(width, config.dim, axes=("features", "dim"))

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.up(jax.nn.relu(self.down(self.norm(x))))


class OutputAdapter(nnx.Module):
    """Convolutions with gates, each of which leaves fewer frames; the first may be narrowed."""

    def __init__(self, config: SpeechConfig, *, rngs: nnx.Rngs) -> None:
        make, width = LayerFactory.of(config, rngs), config.output_dim
        is_narrowed = width != config.dim
        self.projection = make.linear(config.dim, width) if is_narrowed else None
        self.norm = make.layer_norm(width, _EPS) if is_narrowed else None
        self.layers = nnx.List(
            [
                make.conv(
                    width,
                    2 * width,
                    (config.adapter_window,),
                    stride=config.adapter_stride,
                    padding=1,
                    axes=("channels", "residual"),
                )
                for _ in range(config.adapter_layers)
            ]
        )

    def __call__(self, x: jax.Array) -> jax.Array:
        """x [B, T, D] -> [B, T', output_dim]."""
        if self.projection is not None and self.norm is not None:
            x = self.norm(self.projection(x))
        for layer in self.layers:
            x = jax.nn.glu(layer(x))
        return x


def language_tensors(directory: Path) -> Mapping[str, StoredTensor]:
    """The tensors of `adapter.<language>.safetensors`, or `.bin`, for the language that the
    tokenizer spells; none if the directory has no such files.

    Raises WeightsError if there are files for other languages only.
    """
    language = read_language(directory)
    endings = ("safetensors", "bin")
    files = [file for ending in endings for file in sorted(directory.glob(f"adapter.*.{ending}"))]
    if language is None or not files:
        return {}
    for file in files:
        if file.stem == f"adapter.{language}":
            return read_pickled(file) if file.suffix == ".bin" else read_header(file)
    others = ", ".join(sorted({file.stem.removeprefix("adapter.") for file in files}))
    raise WeightsError(
        f"{directory / TOKENIZER_FILE} has target_lang={language!r}, but there are adapters for "
        f"{others} only. Download adapter.{language}.safetensors, or name one of these."
    )


def refine(config: SpeechConfig, tensors: Mapping[str, Any]) -> SpeechConfig:
    """The config with as many letters as the language has."""
    letters = tensors.get("lm_head.weight")
    if config.vocab_size is None or config.block_adapter_dim is None or letters is None:
        return config
    return replace(config, vocab_size=letters.shape[0])
