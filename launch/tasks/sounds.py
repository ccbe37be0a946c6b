"""The tasks of models that hear what kind a sound is. Results as those of images."""

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from launch.sound import read_sound
from launch.tasks.media_reader import labels_of, open_model
from launch.tasks.task import Request, Task
from launch.tasks.text_understanding import softmax, write_rows
from models.ast.features import log_mel, read_spectrogram
from models.parameters import merge

SHOWN = 5  # classes of a sound


def classify_sound(request: Request) -> None:
    """The likeliest classes and their probabilities."""
    sound = _spectrogram(request)
    model = open_model(request)
    probabilities = softmax(np.asarray(_logits(model.graph, model.parameters, sound))[0])
    names = labels_of(model, len(probabilities))
    write_rows((names[i], probabilities[i]) for i in np.argsort(-probabilities)[:SHOWN])


def extract_sound_features(request: Request) -> None:
    """JSON: the vector of every place (`hidden`) and that of the sound (`pooled`)."""
    sound = _spectrogram(request)
    model = open_model(request)
    features = _features(model.graph, model.parameters, sound)._asdict()
    vectors = {name: np.asarray(value)[0].tolist() for name, value in features.items()}
    sys.stdout.write(json.dumps(vectors) + "\n")


def _spectrogram(request: Request) -> np.ndarray:
    """That of the sound [1, frames, mel bands]."""
    settings = read_spectrogram(request.directory)
    return log_mel(read_sound(Path(request.input), settings.sampling_rate), settings)[None]


@partial(jax.jit, static_argnums=0)
def _logits(graph: Any, parameters: Any, sound: jax.Array) -> jax.Array:
    return merge(graph, parameters)(sound)


@partial(jax.jit, static_argnums=0)
def _features(graph: Any, parameters: Any, sound: jax.Array) -> Any:
    return merge(graph, parameters).features(sound)


TASKS = (
    Task("audio-classification", "a file of sound", classify_sound),
    Task("audio-feature-extraction", "a file of sound", extract_sound_features),
)
