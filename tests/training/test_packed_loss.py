"""Packed rows train on the same sums as documents alone."""

from __future__ import annotations

from collections.abc import Sequence
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
from launch.finetuning.objectives import Classification
from launch.finetuning.packing import packed as packed_rows
from launch.finetuning.text_examples import Row
from launch.training.objectives import Batch, LanguageModelling, Loss, Objective
from models.parameters import Parameters, merge
from models.pretrained import Pretrained
from tests.models.parity.cases import DECODERS
from tests.models.parity.text_cases import FAMILIES, LABELS
from tests.models.tiny import random_model
from tests.quick_compile import QUICK_COMPILE

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


@pytest.mark.slow
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

    batch = packed(documents, packing)
    check_same(model, LanguageModelling(), batch, alone(batch), neuron_devices[0])


@pytest.mark.parametrize("family", ["Bert", "MPNet", "ModernBert"])
def test_packed_texts_of_encoders_do_not_see_each_other(
    neuron_devices: list[jax.Device], family: str
) -> None:
    """Absolute positions, relative ones and such that begin behind the padding's, and local
    attention."""
    model = random_model(
        {
            **FAMILIES[family],
            **LABELS,
            "architectures": [f"{family}ForTokenClassification"],
            "max_position_embeddings": SEQ_LEN + 2,
            "num_hidden_layers": 2,
        }
    )
    rows = words()
    together = packed_rows(rows)
    assert [int(row["segments"].max()) for row in together] == [3, 2, 1]

    def batch(rows: Sequence[Row]) -> Batch:
        empty = {name: np.zeros_like(values) for name, values in rows[0].items()}
        filled = [*rows, *[empty] * (8 - len(rows))]
        return {name: np.stack([row[name] for row in filled]) for name in empty}

    check_same(model, Classification(), batch(together), batch(rows), neuron_devices[0])


def words() -> list[Row]:
    """Texts of tokens with labels, each in a row of its own."""
    rng = np.random.default_rng(0)
    rows = []
    for length in (9, 20, 3, 14, 11, 20):
        row = {
            "tokens": rng.integers(2, 96, SEQ_LEN).astype(np.int32),
            "labels": rng.integers(0, 3, SEQ_LEN).astype(np.int32),
            "weights": rng.integers(0, 2, SEQ_LEN).astype(np.float32),
            "real": np.ones(SEQ_LEN, bool),
        }
        for name, fill in (("tokens", 1), ("labels", 0), ("weights", 0), ("real", False)):
            row[name][length:] = fill
        rows.append(row)
    return rows


def check_same(
    model: Pretrained, objective: Objective, packed: Batch, single: Batch, device: jax.Device
) -> None:
    """The means over two batches, and their gradients, are the same."""

    @partial(jax.jit, compiler_options=QUICK_COMPILE)
    @partial(jax.value_and_grad, has_aux=True)
    def sums(parameters: Parameters, batch: Batch) -> tuple[jax.Array, Loss]:
        loss = objective(merge(model.graph, parameters), batch, None)
        return loss.total, loss

    parameters = jax.device_put(model.parameters, device)
    (_, got), gradient = sums(parameters, packed)
    (_, expected), expected_gradient = sums(parameters, single)
    assert float(got.weight) == float(expected.weight) == single["weights"].sum()
    np.testing.assert_allclose(got.total / got.weight, expected.total / expected.weight, rtol=1e-5)
    sizes = {path: float(np.abs(value).max()) for path, value in expected_gradient.items()}
    # The bias of keys changes nothing: its gradient is what rounding leaves.
    noise = float(np.finfo(np.float32).epsneg) * max(sizes.values())
    for path, value in expected_gradient.items():
        allowed = max(1e-5 * sizes[path], noise)
        np.testing.assert_allclose(gradient[path], value, rtol=0, atol=allowed, err_msg=path)
