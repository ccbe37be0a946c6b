"""Tiny decoders of transformers."""

from __future__ import annotations

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from tests.torch.survey.tiny import shrink


def decoder(kind: str, rows: int = 1, length: int = 8) -> tuple[torch.nn.Module, torch.Tensor]:
    """A decoder of a kind without its cache, and tokens; always the same."""
    config = shrink(AutoConfig.for_model(kind))
    config.use_cache = False
    torch.manual_seed(0)
    module = AutoModelForCausalLM.from_config(config).eval()
    return module, torch.randint(3, 60, (rows, length))
