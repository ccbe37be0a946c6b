"""Packed rows train on the same sums as documents alone."""

from __future__ import annotations

from functools import partial

import grain
import jax
import numpy as np
import pytest

from launch.data.batches import held_out_batches
from launch.data.config import DataConfig
from launch.data.documents import Documents
from launch.data.packings import PACKINGS
from launch.data.records import Counts
from launch.training.objectives import Batch, LanguageModelling, Loss
from models.parameters import Parameters, merge
from tests.models.parity.cases import DECODERS
from tests.models.tiny import QUICK_COMPILE, random_model

SEQ_LEN = 32
MODELS = {case.name: case for case in DECODERS}


def packed(documents: list[np.ndarray], packing: str) -> Batch:
    """All documents, in one batch of eight rows."""
    way = PACKINGS[packing]
    pieces = way.training(Documents.of(documents), DataConfig(), SEQ_LEN, Counts())
    (batch,) = held_out_batches(way.rows(grain.MapDataset.source(pieces), SEQ_LEN, 0), 8)
    return batch


def alone(batch: Batch) -> Batch:
    """The same texts, each in a row of its own."""
    segments = batch["segments"]
    runs = [
        (row, *np.flatnonzero(segments[row] == number)[[0, -1]])
        for row in range(len(segments))
        for number in range(1, segments[row].max() + 1)
    ]
    assert len(runs) > (segments.max(axis=1) > 0).sum()
    names = ("tokens", "targets", "weights")
    arrays = {name: np.zeros((len(runs), SEQ_LEN), batch[name].dtype) for name in names}
    for place, (row, first, last) in enumerate(runs):
        for name in names:
            arrays[name][place, : last + 1 - first] = batch[name][row, first : last + 1]
    return arrays


@pytest.mark.parametrize(
    ("name", "packing"),
    [
        ("LlamaForCausalLM 3, tied, biases", "first_fit"),
        ("LlamaForCausalLM 3, tied, biases", "concat_then_split"),
        ("Gemma3ForCausalLM", "first_fit"),
    ],
)
def test_loss_and_gradient_of_packed_texts_are_the_means_over_single_ones(
    neuron_devices: list[jax.Device], name: str, packing: str
) -> None:
    case = MODELS[name]
    model = random_model({**case.config, "architectures": [case.architecture]})
    rng = np.random.default_rng(0)
    documents = [rng.integers(0, 96, n).astype(np.int32) for n in (9, 33, 2, 14, 20, 5, 27)]

    @partial(jax.jit, compiler_options=QUICK_COMPILE)
    @partial(jax.value_and_grad, has_aux=True)
    def sums(parameters: Parameters, batch: Batch) -> tuple[jax.Array, Loss]:
        loss = LanguageModelling()(merge(model.graph, parameters), batch, None)
        return loss.total, loss

    batch = packed(documents, packing)
    parameters = jax.device_put(model.parameters, neuron_devices[0])
    (_, got), gradient = sums(parameters, batch)
    (_, expected), expected_gradient = sums(parameters, alone(batch))
    assert float(got.weight) == float(expected.weight) == sum(map(len, documents)) - 7
    np.testing.assert_allclose(got.total / got.weight, expected.total / expected.weight, rtol=1e-5)
    for path, value in expected_gradient.items():
        largest = float(np.abs(value).max())
        np.testing.assert_allclose(gradient[path], value, rtol=0, atol=1e-5 * largest, err_msg=path)
