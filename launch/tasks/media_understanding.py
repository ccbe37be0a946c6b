"""The tasks of image and sound models. Results are lines of tab-separated columns."""

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from launch.prompt_text import open_clip_text
from launch.serving.config import EngineConfig
from launch.serving.media.speech import load, transcribe
from launch.sound import read_sound
from launch.speech import Manner, Window
from launch.tasks.media_reader import ONE_DEVICE, labels_of, open_model, read_pixels
from launch.tasks.task import Request, Task
from launch.tasks.text_reader import parts_of
from launch.tasks.text_understanding import softmax, write_rows
from models.parameters import merge
from models.whisper.features import read_spectrogram

SHOWN = 5  # classes of an image
MOST_WINDOWS = 8  # of sound that are transcribed at once


def classify_image(request: Request) -> None:
    """Prints the most likely classes and their probabilities."""
    pixels = read_pixels(request.directory, Path(request.input))
    model = open_model(request)
    probabilities = softmax(np.asarray(_call(model.graph, model.parameters, pixels))[0])
    names = labels_of(model, len(probabilities))
    best = np.argsort(-probabilities)[:SHOWN]
    write_rows((names[i], probabilities[i]) for i in best)


def match_texts(request: Request) -> None:
    """Prints the texts and their probabilities, the best description of the image first."""
    file, *texts = parts_of(request, "an image file and texts that may describe it", count=2)
    pixels = read_pixels(request.directory, Path(file))
    encoder = open_clip_text(request.directory)
    model = open_model(request)
    tokens = encoder.rows(texts, model.config.text.max_seq_len)
    logits = _call(model.graph, model.parameters, tokens, pixels)
    probabilities = softmax(np.asarray(logits)[0])
    write_rows((texts[i], probabilities[i]) for i in np.argsort(-probabilities))


def extract_image_features(request: Request) -> None:
    """Prints JSON: the vector of every position (`hidden`), and that of the image (`pooled`) if
    there is one."""
    pixels = read_pixels(request.directory, Path(request.input))
    model = open_model(request)
    features = _features(model.graph, model.parameters, pixels)._asdict()
    vectors = {k: np.asarray(v)[0].tolist() for k, v in features.items() if v is not None}
    sys.stdout.write(json.dumps(vectors) + "\n")


def recognize_speech(request: Request) -> None:
    """Prints the transcript, one line per window of the spectrogram's length."""
    settings = read_spectrogram(request.directory)
    sound = read_sound(Path(request.input), settings.sampling_rate)
    rows = min(-(-len(sound) // settings.num_samples), MOST_WINDOWS)
    engine = EngineConfig(
        max_num_seqs=rows,
        num_seqs_buckets=str(rows),
        prefill_rows_buckets=str(rows),
        prefill_buckets="8",
    )
    loaded = load(request.directory, request.mesh or ONE_DEVICE, engine, request.dtype)
    windows = [Window(features, Manner()) for features in loaded.listener.windows(sound)]
    for window in transcribe(loaded, windows, request.generation.max_new_tokens):
        sys.stdout.write(loaded.listener.text(window.tokens) + "\n")
        sys.stdout.flush()


@partial(jax.jit, static_argnums=0)
def _call(graph: Any, parameters: Any, *inputs: jax.Array) -> jax.Array:
    return merge(graph, parameters)(*inputs)


@partial(jax.jit, static_argnums=0)
def _features(graph: Any, parameters: Any, pixels: jax.Array) -> Any:
    return merge(graph, parameters).features(pixels)


TASKS = (
    Task("image-classification", "an image file", classify_image),
    Task(
        "zero-shot-image-classification",
        "an image file | a text that may describe it | another | …",
        match_texts,
    ),
    Task("image-feature-extraction", "an image file", extract_image_features),
    Task("automatic-speech-recognition", "a sound file", recognize_speech),
)
