"""Published configs: their models have as many parameters as their publishers say."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from models import pretrained
from models.architecture import Architecture
from models.errors import ConfigError
from models.published.table import PUBLISHED

DEPTHS = (
    "num_layers",
    "num_single_layers",
    "num_decoder_layers",
    "encoder_layers",
    "decoder_layers",
)
# As the hub counts the tensors of files, or papers say; batch norms' statistics do not count.
COUNTS = {
    "meta-llama/Llama-2-7b-hf": 6_738_415_616,
    "meta-llama/Llama-2-70b-hf": 68_976_648_192,
    "meta-llama/Meta-Llama-3-8B": 8_030_261_248,
    "meta-llama/Meta-Llama-3-70B": 70_553_706_496,
    "meta-llama/Llama-3.1-8B": 8_030_261_248,
    "meta-llama/Llama-3.1-70B": 70_553_706_496,
    "meta-llama/Llama-3.1-405B": 405_853_388_800,
    "meta-llama/Llama-3.2-1B": 1_235_814_400,
    "meta-llama/Llama-3.2-3B": 3_212_749_824,
    "TinyLlama/TinyLlama-1.1B-Chat-v1.0": 1_100_048_384,
    "mistralai/Mistral-7B-v0.1": 7_241_732_096,
    "mistralai/Mixtral-8x7B-v0.1": 46_702_792_704,
    "Qwen/Qwen2.5-7B-Instruct": 7_615_616_512,
    "Qwen/Qwen3-0.6B": 596_049_920,
    "Qwen/Qwen3-8B": 8_190_735_360,
    "Qwen/Qwen3-32B": 32_762_123_264,
    "Qwen/Qwen3-30B-A3B": 30_532_122_624,
    "microsoft/phi-2": 2_779_683_840,
    "openai-community/gpt2": 124_439_808,
    "google-bert/bert-base-uncased": 109_514_298,
    "google-bert/bert-large-uncased": 335_174_458,
    "FacebookAI/roberta-base": 124_697_433,
    "distilbert/distilbert-base-uncased": 66_985_530,
    "google-t5/t5-small": 60_506_624,
    "google/vit-base-patch16-224": 86_567_656,
    "microsoft/resnet-50": 25_557_032,
    "microsoft/swin-tiny-patch4-window7-224": 28_288_354,
    "openai/whisper-tiny": 37_760_640,
    "openai/whisper-large-v3": 1_543_490_560,
    "stable-diffusion-v1-5/stable-diffusion-v1-5/unet": 859_520_964,
    "stable-diffusion-v1-5/stable-diffusion-v1-5/text_encoder": 123_060_480,
    "stable-diffusion-v1-5/stable-diffusion-v1-5/vae": 83_653_863,
    "stabilityai/stable-diffusion-2-1/unet": 865_910_724,
    "stabilityai/stable-diffusion-xl-base-1.0/unet": 2_567_463_684,
    "stabilityai/stable-diffusion-xl-base-1.0/text_encoder": 123_060_480,
    "stabilityai/stable-diffusion-xl-base-1.0/text_encoder_2": 694_659_840,
    "stabilityai/stable-diffusion-xl-base-1.0/vae": 83_653_863,
    "lllyasviel/sd-controlnet-canny": 361_279_120,
    "PixArt-alpha/PixArt-XL-2-1024-MS/transformer": 610_856_096,
    "black-forest-labs/FLUX.1-schnell/transformer": 11_891_178_560,
    "black-forest-labs/FLUX.1-dev/transformer": 11_901_408_320,
}


def test_every_name_has_a_count() -> None:
    assert COUNTS.keys() == PUBLISHED.keys()


def count(architecture: Architecture, config: Any) -> int:
    _, parameters = architecture.abstract(config)
    return sum(
        math.prod(leaf.shape)
        for path, leaf in parameters.items()
        if not path.endswith((".mean", ".variance"))
    )


@pytest.mark.parametrize("name", COUNTS)
def test_parameters_are_as_many_as_published(name: str) -> None:
    """Counted at one and two layers, which are all alike."""
    architecture, config, _ = pretrained.describe(Path(name))
    assert config == pretrained.config(name)
    depths = {field: getattr(config, field) for field in DEPTHS if hasattr(config, field)}
    shallow = replace(config, **dict.fromkeys(depths, 1))
    total = least = count(architecture, shallow)
    for field, depth in depths.items():
        deeper = count(architecture, replace(shallow, **{field: 2}))
        total += (depth - 1) * (deeper - least)
    assert total == COUNTS[name]


def test_other_names_are_refused() -> None:
    with pytest.raises(ConfigError, match="'nobody/nothing' is unknown; choose one of meta-llama"):
        pretrained.config("nobody/nothing")
