"""The tasks of sound models. Results are lines of tab-separated columns, or JSON."""

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from launch.sound import read_sound
from launch.sound_inputs import INPUTS
from launch.tasks.media_reader import labels_of, open_model
from launch.tasks.task import Request, Task
from launch.tasks.text_understanding import softmax, write_rows
from models.errors import ConfigError
from models.parameters import merge
from models.pretrained import describe
from models.wav2vec2.letters import read_letters
from models.wav2vec2.samples import read_samples

SHOWN = 5  # classes of a sound


def classify_sound(request: Request) -> None:
    """Prints the most likely classes and their probabilities."""
    sound = _read_sound(request)
    model = open_model(request)
    probabilities = softmax(np.asarray(_logits(model.graph, model.parameters, sound))[0])
    names = labels_of(model, len(probabilities))
    write_rows((names[i], probabilities[i]) for i in np.argsort(-probabilities)[:SHOWN])


def extract_sound_features(request: Request) -> None:
    """Prints JSON: the vector of every position (`hidden`) and that of the sound (`pooled`)."""
    sound = _read_sound(request)
    model = open_model(request)
    features = _features(model.graph, model.parameters, sound)._asdict()
    vectors = {name: np.asarray(value)[0].tolist() for name, value in features.items()}
    sys.stdout.write(json.dumps(vectors) + "\n")


def recognize_letters(request: Request) -> None:
    """Prints the transcript as one line."""
    letters = read_letters(request.directory)
    sound = _read_sound(request)
    model = open_model(request)
    logits = _logits(model.graph, model.parameters, sound)
    sys.stdout.write(letters.text(np.argmax(np.asarray(logits)[0], axis=-1).tolist()) + "\n")


def classify_frames(request: Request) -> None:
    """Prints, for every frame, the second at which it begins and the probability of each class."""
    sound = _read_sound(request)
    model = open_model(request)
    logits = np.asarray(_logits(model.graph, model.parameters, sound))[0]
    seconds = model.config.stride / read_samples(request.directory).sampling_rate
    names = labels_of(model, logits.shape[-1])
    write_rows([("second", *names)])
    for number, row in enumerate(1 / (1 + np.exp(-logits.astype(np.float64)))):
        write_rows([(number * seconds, *row)])


def extract_speaker(request: Request) -> None:
    """Prints JSON: the x-vector of the speaker (`embedding`)."""
    sound = _read_sound(request)
    model = open_model(request)
    vector = _logits(model.graph, model.parameters, sound).embedding
    sys.stdout.write(json.dumps({"embedding": np.asarray(vector)[0].tolist()}) + "\n")


def _read_sound(request: Request) -> np.ndarray:
    """What the model of the request takes, a batch of one."""
    architecture, config, _ = describe(request.directory, tasks=request.tasks)
    of = INPUTS.get(architecture.family)
    if of is None:
        raise ConfigError(f"{architecture.name} does not accept sound on its own")
    sound = of(config, request.directory)
    return sound.features(read_sound(Path(request.input), sound.sampling_rate))[None]


@partial(jax.jit, static_argnums=0)
def _logits(graph: Any, parameters: Any, sound: jax.Array) -> Any:
    return merge(graph, parameters)(sound)


@partial(jax.jit, static_argnums=0)
def _features(graph: Any, parameters: Any, sound: jax.Array) -> Any:
    return merge(graph, parameters).features(sound)


TASKS = (
    Task("audio-classification", "a sound file", classify_sound),
    Task("audio-feature-extraction", "a sound file", extract_sound_features),
    Task("audio-frame-classification", "a sound file", classify_frames),
    Task("audio-xvector", "a sound file", extract_speaker),
    Task("ctc-speech-recognition", "a sound file", recognize_letters),
)
