"""BART: from its config.json to the model. Defaults are those of transformers."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from models.architecture import Architecture
from models.bart.config import BartConfig
from models.bart.model import Bart
from models.bart.weights import BIAS, key_table
from models.errors import ConfigError
from models.settings import read_model, write_settings
from models.weights.fields import Fields


def _bart(fields: Fields) -> BartConfig:
    fields.refuse(
        "tie_word_embeddings", True, why="the output layer must share the embedding table"
    )
    return read_model(BartConfig, fields)


def _refine(config: BartConfig, tensors: Mapping[str, Any]) -> BartConfig:
    """Files hold a bias of the logits that nothing trains."""
    if BIAS in tensors and np.any(np.asarray(tensors[BIAS].view())):
        raise ConfigError(f"{BIAS} is not zero: only models without a logits bias are supported")
    return config


ARCHITECTURES = (
    Architecture(
        name="BartForConditionalGeneration",
        model_type="bart",
        family="bart",
        task="text2text-generation",
        read_config=_bart,
        defaults=write_settings(BartConfig()),
        model=Bart,
        keys=key_table,
        refine=_refine,
    ),
)
