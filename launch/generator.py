"""Text from a checkpoint."""

import codecs
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx

from launch import checkpoints
from launch.errors import CheckpointError, DataError
from launch.meshes import choose_mesh, parameter_shardings
from launch.program import say
from launch.step import abstract_model
from models.generate import generate
from models.llama.config import LlamaConfig
from models.parameters import Parameters
from models.sampling import Sampling


def generate_text(
    directory: Path,
    *,
    mesh: str | None,
    prompt: str,
    max_new_tokens: int,
    sampling: Sampling,
    seed: int,
) -> None:
    """Writes the prompt and its continuation to standard output, piece by piece.

    Uses the newest sound checkpoint and changes nothing in the directory. Raises CheckpointError
    if there is none, MeshError if the mesh does not fit, DataError for an empty prompt.
    """
    if not prompt:
        raise DataError("--prompt is empty: give at least one character to continue")
    graph, parameters, config = load(directory, mesh)
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    sys.stdout.write(prompt)
    generate(
        graph,
        parameters,
        np.frombuffer(prompt.encode(), np.uint8)[None, :].astype(np.int32),
        max_new_tokens=max_new_tokens,
        context=config.max_seq_len,
        sampling=sampling,
        key=jax.random.key(seed),
        on_tokens=lambda tokens: _write(decoder.decode(tokens[0].astype(np.uint8).tobytes())),
    )
    _write(decoder.decode(b"", final=True) + "\n")


def load(
    directory: Path, mesh_text: str | None
) -> tuple[nnx.GraphDef[Any], Parameters, LlamaConfig]:
    """The model of the newest sound checkpoint, its weights on the mesh."""
    step = checkpoints.newest(directory, move_aside=False)
    if step is None:
        raise CheckpointError(
            f"no checkpoint in --checkpoint_dir={directory}. Train one with "
            f"python -m launch.train --checkpoint_dir={directory}, or give another directory."
        )
    config = LlamaConfig(**checkpoints.read_record(directory, step)["model"])
    graph, parameters = abstract_model(config)
    # One sequence is made: the batch is not split, every data-parallel group does the same.
    mesh = choose_mesh(mesh_text, config, batch_size=jax.device_count())
    target = checkpoints.abstract(parameters, parameter_shardings(mesh, parameters))
    say(f"checkpoint {step} of {directory} on mesh {dict(mesh.shape)}")
    return graph, checkpoints.restore(directory, step, checkpoints.PARAMETERS, target), config


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
