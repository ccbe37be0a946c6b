"""A small model of speech, sounds for it, and what transformers makes of them."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer, models

from tests.launch.random_models import write_model
from tests.models.parity.media_cases import WHISPER

TRANSCRIPTS = Path(__file__).with_suffix(".json")
RATE = 3840  # samples per second: a second is as long as the model takes at once
END, PAD = 75, 90
MOST = 28  # tokens of a text: the context has 32
GENERATION = {
    "decoder_start_token_id": 91,
    "eos_token_id": END,
    "pad_token_id": PAD,
    "suppress_tokens": [16, 5],
    "begin_suppress_tokens": [END, 80],
    "is_multilingual": True,
    "lang_to_id": {"<|en|>": 80, "<|de|>": 81, "<|fr|>": 37, "<|es|>": 62},
    "task_to_id": {"transcribe": 82, "translate": 83},
    "no_timestamps_token_id": 84,
}
SPECTROGRAM = {
    "feature_extractor_type": "WhisperFeatureExtractor",
    "feature_size": 8,
    "sampling_rate": RATE,
    "hop_length": 160,
    "n_fft": 400,
    "chunk_length": 1,
}


def write_speech(directory: Path) -> Path:
    """Its directory. Sound, language and place change what it writes, and some texts end early."""
    name = "WhisperForConditionalGeneration"
    write_model(directory, name, {**WHISPER, "encoder_layers": 1, "decoder_layers": 1})
    rng, weights = np.random.default_rng(3), load_file(directory / "model.safetensors")
    for key, value in weights.items():
        if key.endswith(".bias"):
            weights[key] = value - 1
        elif value.ndim > 1 and "encoder.embed_positions" not in key:
            scale = 2 if "_proj" in key else 4 if "positions" in key else 1
            drawn = scale * rng.normal(size=value.shape) / np.prod(value.shape[1:]) ** 0.5
            weights[key] = drawn.astype(value.dtype)
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    (directory / "generation_config.json").write_text(json.dumps(GENERATION))
    (directory / "preprocessor_config.json").write_text(json.dumps(SPECTROGRAM))
    words = {f"w{i}": i for i in range(96)}
    Tokenizer(models.WordLevel(words, "w0")).save(str(directory / "tokenizer.json"))
    return directory


def sounds(count: int, samples: int) -> np.ndarray:
    """Random ones, int16 [count, samples]."""
    rng = np.random.default_rng(0)
    loudness = 10.0 ** rng.uniform(1, 4, (count, samples // 480 + 1)).repeat(480, axis=1)
    return (loudness[:, :samples] * rng.uniform(-3, 3, (count, samples))).astype("<i2")


@dataclass(frozen=True)
class Request:
    """Windows of sound of a second, int16, and how they are to be heard."""

    windows: tuple[np.ndarray, ...]
    language: str | None
    task: str | None = "transcribe"
    most: int = MOST


LONG = sounds(1, 4 * RATE + 500)[0]
WINDOWS = sounds(10, RATE)
REQUESTS: dict[str, Request] = {
    "long, in German": Request(tuple(LONG[i : i + RATE] for i in range(0, len(LONG), RATE)), "de"),
    "several": Request(tuple(sounds(8, RATE)), None),
    "several, in French": Request(tuple(sounds(8, RATE)), "fr"),
    "by a command": Request(tuple(WINDOWS), None, None, 6),
}


def transcripts(name: str) -> list[str]:
    """What transformers makes of the windows of a request, as `speech_reference` has written it."""
    texts: list[str] = json.loads(TRANSCRIPTS.read_text())[name]
    return texts
