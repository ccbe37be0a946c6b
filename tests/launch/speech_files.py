"""A small model of speech, and what transformers hears with it."""

import json
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer, models
from transformers import WhisperFeatureExtractor, WhisperForConditionalGeneration

from tests.launch.random_models import write_model
from tests.models.parity.media_cases import WHISPER

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


def transcripts(
    directory: Path,
    windows: Iterable[np.ndarray],
    language: str | None,
    task: str | None = "transcribe",
    most: int = MOST,
) -> list[str]:
    """What transformers makes of windows of int16."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        extractor = WhisperFeatureExtractor.from_pretrained(directory)
        model = WhisperForConditionalGeneration.from_pretrained(directory)
        samples = [window / 2**15 for window in windows]
        features = extractor(samples, sampling_rate=RATE, return_tensors="pt").input_features
        manner = {"language": language, "task": task}
        made = model.generate(features, **manner, max_new_tokens=most, return_timestamps=False)
    return list(map(_text, made.tolist()))


def _text(tokens: Sequence[int]) -> str:
    length = len(tokens)  # transformers takes the end away, and fills up
    while tokens[length - 1] in (END, PAD):
        length -= 1
    return " ".join(f"w{token}" for token in tokens[:length])
