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
from models.generate import generate
from models.parameters import Parameters
from models.pretrained import describe_fields
from models.sampling import Sampling
from models.weights.fields import Fields


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
        restart=True,
        on_tokens=lambda tokens: _write(decoder.decode(tokens[0].astype(np.uint8).tobytes())),
    )
    _write(decoder.decode(b"", final=True) + "\n")


def load(directory: Path, mesh_text: str | None) -> tuple[nnx.GraphDef[Any], Parameters, Any]:
    """The model of the newest sound checkpoint, its weights on the mesh."""
    step = checkpoints.newest(directory, move_aside=False)
    if step is None:
        raise CheckpointError(
            f"no checkpoint in --checkpoint_dir={directory}. Train one with "
            f"python -m launch.train --checkpoint_dir={directory}, or give another directory."
        )
    record = checkpoints.read_record(directory, step)
    if "config_json" not in record:
        raise CheckpointError(
            f"checkpoint {step} of {directory} was made by an earlier version of this program and "
            "does not say which architecture it is. Train it again in another --checkpoint_dir."
        )
    architecture, config, _ = describe_fields(
        Fields(record["config_json"], f"checkpoint {step} of {directory}"),
        dtype=record["model"]["dtype"],
        param_dtype=record["model"]["param_dtype"],
    )
    graph, parameters = architecture.abstract(config)
    # One sequence is made: the batch is not split, every data-parallel group does the same.
    mesh = choose_mesh(mesh_text, config.num_kv_heads, batch_size=jax.device_count())
    shardings = parameter_shardings(mesh, parameters, architecture.axes)
    target = checkpoints.abstract(parameters, shardings)
    say(f"checkpoint {step} of {directory} on mesh {dict(mesh.shape)}")
    return graph, checkpoints.restore(directory, step, checkpoints.PARAMETERS, target), config


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
