"""Models of images and sound on a mesh, and the files they work on."""

import wave
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from jax.sharding import Mesh

from launch.errors import DataError
from launch.generator import load_with_progress
from launch.meshes import make_mesh, parse_mesh
from launch.program import say
from launch.tasks.task import Request
from models.images import open_image, pixels_of, read_preprocessing
from models.pretrained import Pretrained, describe

ONE_DEVICE = "data=1,model=1"
_SAMPLES: Mapping[int, str] = {1: "u1", 2: "<i2", 4: "<i4"}  # by bytes of a sample


def open_model(request: Request) -> Pretrained:
    """The model of the request's directory, its weights on the mesh.

    Raises MeshError, ConfigError, ShardingError or WeightsError for what does not suit.
    """
    described = describe(request.directory)
    mesh = mesh_of(request)
    say(f"{described.architecture.name} of {request.directory} on mesh {dict(mesh.shape)}")
    return load_with_progress(request.directory, mesh, dtype=request.dtype)


def mesh_of(request: Request) -> Mesh:
    """The mesh of --mesh; without it one device, which one input at a time cannot outgrow."""
    return make_mesh(parse_mesh(request.mesh or ONE_DEVICE))


def read_pixels(directory: Path, file: Path) -> np.ndarray:
    """Pixels FP32 [1, H, W, 3] of an image, as the checkpoint in `directory` wants them."""
    return pixels_of(open_image(file), read_preprocessing(directory))[None]


def labels_of(model: Pretrained, count: int) -> list[str]:
    """The names of the classes, as config.json has them."""
    names = model.fields.object("id2label", None)
    named: dict[str, Any] = {} if names is None else dict(names.values)
    return [str(named.get(str(i), f"LABEL_{i}")) for i in range(count)]


def read_sound(file: Path, sampling_rate: int) -> np.ndarray:
    """Samples FP64 [N] from -1 to 1 of a WAV file, the mean of its channels.

    Raises DataError if it cannot be read, is empty or has another sampling rate.
    """
    try:
        with wave.open(str(file), "rb") as sound:
            rate, channels, width = sound.getframerate(), sound.getnchannels(), sound.getsampwidth()
            raw = sound.readframes(sound.getnframes())
    except (OSError, EOFError, wave.Error) as error:
        raise DataError(f"{file} cannot be read as a WAV file of PCM samples: {error}") from error
    remedy = f"convert it: ffmpeg -i {file} -ac 1 -ar {sampling_rate} -c:a pcm_s16le sound.wav"
    if rate != sampling_rate:
        raise DataError(
            f"{file} has {rate} samples per second, but the model hears {sampling_rate}; {remedy}"
        )
    if width not in _SAMPLES:
        raise DataError(f"{file} has samples of {8 * width} bits, which are not read; {remedy}")
    samples = np.frombuffer(raw, np.dtype(_SAMPLES[width])).astype(np.float64)
    if not samples.size:
        raise DataError(f"{file} holds no sound")
    half = 2.0 ** (8 * width - 1)
    samples = samples / half - (1 if width == 1 else 0)  # single bytes are unsigned
    return samples.reshape(-1, channels).mean(axis=1)
