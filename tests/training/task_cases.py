"""A tiny random model, records and settings for every task of fine-tuning."""

import json
import wave
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from string import ascii_lowercase
from typing import Any

import numpy as np
import tokenizers
from tokenizers import models, pre_tokenizers, processors

from models import pretrained
from tests.models.tiny import random_model

STDDEV = 0.05  # of weights to begin with

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 256,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 96,
}
BERT = {
    "architectures": ["BertForMaskedLM"],
    "model_type": "bert",
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "max_position_embeddings": 16,
    "pad_token_id": 0,
}
T5 = {
    "architectures": ["T5ForConditionalGeneration"],
    "model_type": "t5",
    "vocab_size": 64,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 48,
    "num_layers": 1,
    "num_heads": 4,
    "n_positions": 16,
    "decoder_start_token_id": 0,
    "pad_token_id": 0,
    "initializer_factor": 0.3,
}
VIT = {
    "architectures": ["ViTForImageClassification"],
    "model_type": "vit",
    "image_size": 8,
    "patch_size": 4,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
}
RESNET = {
    "architectures": ["ResNetForImageClassification"],
    "model_type": "resnet",
    "embedding_size": 8,
    "hidden_sizes": [8],
    "depths": [1],
    "layer_type": "basic",
}
WHISPER = {
    "architectures": ["WhisperForConditionalGeneration"],
    "model_type": "whisper",
    "vocab_size": 64,
    "num_mel_bins": 8,
    "d_model": 32,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "max_source_positions": 50,
    "max_target_positions": 16,
    "pad_token_id": 0,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
}
HEARING = {
    "feature_size": 8,
    "chunk_length": 1,
    "feature_extractor_type": "WhisperFeatureExtractor",
}
WAV2VEC2 = {
    "architectures": ["Wav2Vec2ForCTC"],
    "model_type": "wav2vec2",
    "vocab_size": 32,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "conv_dim": [8, 8],
    "conv_kernel": [5, 3],
    "conv_stride": [3, 2],
    "num_conv_pos_embeddings": 4,
    "num_conv_pos_embedding_groups": 2,
    "do_stable_layer_norm": True,
    "feat_extract_norm": "layer",
    "conv_bias": True,
    "ctc_loss_reduction": "sum",
    "pad_token_id": 0,
}
CLASSIFIER = {
    "architectures": ["Wav2Vec2ForSequenceClassification"],
    "classifier_proj_size": 16,
    "num_labels": 2,
}
AST = {
    "architectures": ["ASTForAudioClassification"],
    "model_type": "audio-spectrogram-transformer",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "patch_size": 4,
    "frequency_stride": 4,
    "time_stride": 4,
    "num_mel_bins": 8,
    "max_length": 8,
    "num_labels": 2,
}
LETTERS = {
    letter: number for number, letter in enumerate(["<pad>", "<unk>", "|", *ascii_lowercase])
}
TEXT = "the cat sat on a mat and one dog ran to two red hats in town good bad film was so"
WORDS = TEXT.split(" ")
SPECIAL = ["[PAD]", "[CLS]", "[SEP]", "[MASK]", "[UNK]"]

Records = Callable[[Path], list[dict[str, Any]]]


def write_tokenizer(directory: Path) -> None:
    """Words are tokens; texts stand between [CLS] and [SEP]."""
    vocabulary = {word: number for number, word in enumerate([*SPECIAL, *WORDS])}
    made = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.add_special_tokens(SPECIAL)
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 1), ("[SEP]", 2)],
    )
    made.save(str(directory / "tokenizer.json"))


def _talks(directory: Path) -> list[dict[str, Any]]:
    return [
        {
            "messages": [
                {"role": "user", "content": f"{i}?"},
                {"role": "assistant", "content": "ab" * (1 + i % 3)},
            ]
        }
        for i in range(12)
    ]


def _pairs(directory: Path) -> list[dict[str, Any]]:
    return [{"prompt": f"{i}?", "chosen": "yes", "rejected": "no way"} for i in range(12)]


def _texts(directory: Path) -> list[dict[str, Any]]:
    return [{"text": " ".join(["the"] * 5)} for _ in range(12)]


def _films(directory: Path) -> list[dict[str, Any]]:
    kinds = ["bad", *["good"] * 11]
    return [{"text": f"the film was {kind}", "label": kind} for kind in kinds]


def _film_kinds(directory: Path) -> list[dict[str, Any]]:
    """Texts of no kind, one or two; most are long."""
    kinds = [["sad", "long"], [], *[["long"]] * 10]
    return [{"text": "the film was good", "labels": kind} for kind in kinds]


def _film_stars(directory: Path) -> list[dict[str, Any]]:
    kinds = {"bad": 0.5, "good": 4.5}
    return [{"text": f"the film was {kind}", "label": stars} for kind, stars in kinds.items()] * 6


def _hats(directory: Path) -> list[dict[str, Any]]:
    """Questions with three choices, and with two."""
    three = {"question": "two hats", "choices": ["red hats", "cats sat", "dogs"], "answer": "B"}
    two = {"context": "the cat", "question": "sat", "endings": ["red hats", "cats sat"], "label": 1}
    return [three, two] * 6


def _words(directory: Path) -> list[dict[str, Any]]:
    return [{"tokens": ["the", "cat", "sat"], "ner_tags": ["O", "ANIMAL", "O"]} for _ in range(12)]


def _questions(directory: Path) -> list[dict[str, Any]]:
    answer = {"text": ["red hats"], "answer_start": [8]}
    return [
        {"question": "two hats", "context": "the two red hats ran".replace("two ", "one "),
         "answers": answer}
        for _ in range(12)
    ]  # fmt: skip


def _translations(directory: Path) -> list[dict[str, Any]]:
    return [{"source": f"the {word}", "target": f"a {word}"} for word in WORDS[:12]]


def _sounds(directory: Path) -> list[dict[str, Any]]:
    records = []
    for i in range(4):
        file = directory / f"{i}.wav"
        samples = (8000 * np.sin(np.arange(8000) * (0.1 + 0.1 * i))).astype("<i2")
        with wave.open(str(file), "wb") as sound:
            sound.setparams((1, 2, 16000, len(samples), "NONE", ""))
            sound.writeframes(samples.tobytes())
        records.append({"audio": str(file), "text": f"the {WORDS[i]}"})
    return records * 3


def _words_said(directory: Path) -> list[dict[str, Any]]:
    """Sounds of several lengths, as records hold them."""
    return [
        {
            "audio": {"array": np.sin(np.arange(400 + 50 * i) * (0.1 + 0.1 * i)).tolist(),
                      "sampling_rate": 16000},
            "text": f"the {WORDS[i]}",
        }
        for i in range(4)
    ] * 3  # fmt: skip


def _tones(directory: Path) -> list[dict[str, Any]]:
    """Sounds of several lengths, high and low."""
    return [
        {
            "audio": {"array": np.sin(np.arange(400 + 50 * i) * (0.1 + 0.4 * (i % 2))).tolist(),
                      "sampling_rate": 16000},
            "label": ("low", "high")[i % 2],
        }
        for i in range(4)
    ] * 3  # fmt: skip


@dataclass(frozen=True)
class Case:
    """What a task is tried with; without records, on the bundled digits."""

    task: str
    config: dict[str, Any]
    records: Records | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    files: dict[str, Any] = field(default_factory=dict)  # JSON, by name
    packing: str | None = None


_CHAT = {"chat_template": "chatml"}
CASES = {
    "sft": Case("sft", LLAMA, _talks, _CHAT),
    "sft with adapters": Case("sft", LLAMA, _talks, _CHAT | {"lora_rank": 4}),
    "dpo": Case("dpo", LLAMA, _pairs),
    "dpo with adapters": Case("dpo", LLAMA, _pairs, {"lora_rank": 4}),
    "orpo": Case("orpo", LLAMA, _pairs),
    "text-classification": Case("text-classification", BERT, _films),
    "text-classification, several classes": Case("text-classification", BERT, _film_kinds),
    "text-classification, numbers": Case("text-classification", BERT, _film_stars),
    "token-classification": Case("token-classification", BERT, _words),
    "multiple-choice": Case("multiple-choice", BERT, _hats),
    "question-answering": Case("question-answering", BERT, _questions),
    "fill-mask": Case("fill-mask", BERT, _texts, {"mlm_probability": 0.3}, packing="first_fit"),
    "text-to-text": Case("text-to-text", T5, _translations),
    "image-classification, vit": Case("image-classification", VIT),
    "image-classification, resnet": Case("image-classification", RESNET),
    "speech-recognition": Case(
        "speech-recognition", WHISPER, _sounds, files={"preprocessor_config.json": HEARING}
    ),
    "audio-classification, wav2vec2": Case(
        "audio-classification", WAV2VEC2 | CLASSIFIER, _tones, files={"vocab.json": LETTERS}
    ),
    "audio-classification, ast": Case("audio-classification", AST, _tones),
    "ctc-speech-recognition": Case(
        "ctc-speech-recognition", WAV2VEC2, _words_said, files={"vocab.json": LETTERS}
    ),
}


def write_case(case: Case, directory: Path) -> str:
    """--data of a case, and its model in a new directory."""
    pretrained.save(directory, random_model(case.config, stddev=STDDEV))
    for name, values in case.files.items():
        (directory / name).write_text(json.dumps(values))
    if case.config is not LLAMA:
        write_tokenizer(directory)
    if case.records is None:
        return "digits"
    file = directory / "records.jsonl"
    file.write_text("".join(json.dumps(record) + "\n" for record in case.records(directory)))
    return str(file)
