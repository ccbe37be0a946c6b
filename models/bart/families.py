"""BART: from its config.json to the model. Defaults are those of transformers."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from models.architecture import Architecture
from models.bart.config import BartConfig
from models.bart.model import Bart
from models.bart.weights import BIAS, KEYS
from models.errors import ConfigError
from models.weights.tied import refuse_own_head


def _refine(config: BartConfig, tensors: Mapping[str, Any]) -> BartConfig:
    """Files hold a bias of the logits that nothing trains."""
    if BIAS in tensors and np.any(np.asarray(tensors[BIAS].view())):
        raise ConfigError(f"{BIAS} is not zero: only models without a logits bias are supported")
    return config


ARCHITECTURES = (
    Architecture.of(
        "BartForConditionalGeneration",
        BartConfig(),
        Bart,
        KEYS,
        task="text2text-generation",
        read=refuse_own_head,
        refine=_refine,
    ),
)
