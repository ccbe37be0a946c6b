"""A tiny Hugging Face directory, made without transformers."""

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from models import pretrained
from tests.models.tiny import random_model

VOCAB = 300
FIELDS = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": VOCAB,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "initializer_range": 0.2,
    "eos_token_id": 0,
    "dtype": "bfloat16",
}


def write_directory(directory: Path, **changes: Any) -> Path:
    """config.json, model.safetensors and tokenizer.json of a random Qwen3."""
    pretrained.save(directory, random_model({**FIELDS, **changes}))
    byte_pairs().save(str(directory / "tokenizer.json"))
    return directory


def write_config(file: Path, **changes: Any) -> Path:
    file.write_text(json.dumps({**FIELDS, **changes}))
    return file


def byte_pairs() -> Tokenizer:
    """A tokenizer of VOCAB tokens over bytes, with an end mark as token 0."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB,
        special_tokens=["<end>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(
        ["the statement is the statement of the while statement"], trainer
    )
    return tokenizer
