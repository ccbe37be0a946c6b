"""One token of tiny decoders after a static cache of transformers."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import torch
from transformers import AutoModelForCausalLM, StaticCache
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from tests.torch.survey.architectures import LENGTH, Model
from tests.torch.survey.tiny import WORDS, shrink

KINDS = [
    "llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen2_moe", "qwen3_moe", "gemma", "gemma2",
    "gemma3_text", "gpt2", "gpt_neox", "gptj", "opt", "phi", "phi3", "olmo2", "stablelm",
    "cohere", "granite", "starcoder2", "smollm3", "glm4", "seed_oss",
]  # fmt: skip


def of_decoders() -> dict[str, Callable[[], Model]]:
    """A step of each decoder, by its kind."""
    return {kind: lambda kind=kind: _of_decoder(kind) for kind in KINDS}


def _of_decoder(kind: str) -> Model:
    config = shrink(CONFIG_MAPPING[kind]())
    torch.manual_seed(0)
    module = AutoModelForCausalLM.from_config(config).eval()
    taken = inspect.signature(module.forward).parameters
    cache = StaticCache(config=config, max_cache_len=2 * LENGTH)
    options = {"cache" if "cache" in taken else "past_key_values": cache, "use_cache": True}
    with torch.no_grad():
        module(input_ids=torch.randint(3, WORDS // 2, (2, LENGTH)), **options)
    return Model(module, {"input_ids": torch.randint(3, WORDS // 2, (2, 1)), **options})
