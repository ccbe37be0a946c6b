"""The arithmetic of decoders by the usual count, against published numbers of weights."""

from __future__ import annotations

from dataclasses import replace

import pytest

from launch.workloads import MODELS
from models import pretrained
from models.decoder.config import DecoderConfig
from models.decoder.flops import forward_flops, training_flops

MIXTRAL = pretrained.config("mistralai/Mixtral-8x7B-v0.1")
PUBLISHED: dict[str, tuple[DecoderConfig, float]] = {
    # 8.03, 70.6 and 1.24 billion (https://huggingface.co/meta-llama), less the table of embeddings
    # that is only looked up.
    "8b": (MODELS["8b"], 8.03e9 - 128_256 * 4096),
    "70b": (MODELS["70b"], 70.6e9 - 128_256 * 8192),
    "1b, whose table is the output layer, too": (MODELS["1b"], 1.24e9),
    # 12.9 billion active (Jiang et al., "Mixtral of Experts", 2024), less the table.
    "mixtral": (MIXTRAL, 12.9e9 - 32_000 * 4096),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_weights_are_those_that_a_token_is_multiplied_with(name: str) -> None:
    config, weights = PUBLISHED[name]
    alone = forward_flops(config, 1, 1, context=1)
    assert alone == pytest.approx(2 * weights, rel=4e-3)  # three digits are published


def test_attention_is_four_for_each_feature_and_pair_of_tokens() -> None:
    config = MODELS["8b"]
    further = forward_flops(config, 2, 1024, context=4096) - forward_flops(config, 2, 1024)
    assert further == 4 * 2 * 1024 * (4096 - 1024) * 32 * 32 * 128


def test_training_takes_three_passes() -> None:
    """6 for each weight and token (Kaplan et al., 2020)."""
    config = replace(MODELS["8b"], num_layers=2)
    assert training_flops(config, 4, 128) == 3 * forward_flops(config, 4, 128)
