"""Every supported architecture against transformers, with tiny random checkpoints, in FP32."""

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx
from jax.sharding import Mesh, NamedSharding
from safetensors.numpy import load_file

from models import pretrained
from models.generate import generate
from models.parameters import Parameters, merge
from models.registry import ARCHITECTURES
from models.sampling import Sampling
from models.sharding import batch_spec
from models.weights.directory import STEMS, open_tensors
from models.weights.load import load_parameters
from tests.models.parity import ours
from tests.models.parity.cases import CASES, Case

pytest.importorskip(
    "torch", reason="torch is not installed: the reference needs the extra `parity`"
)
from tests.models.parity.reference import (
    Reference,
    make_reference,
)

TOLERANCE = {"rtol": 1e-4, "atol": 1e-4}


@pytest.fixture(scope="module", params=CASES, ids=lambda case: case.name)
def case(request: pytest.FixtureRequest) -> Case:
    return request.param


@pytest.fixture(scope="module")
def reference(case: Case, tmp_path_factory: pytest.TempPathFactory) -> Reference:
    task = ARCHITECTURES[case.architecture].task
    return make_reference(case, task, tmp_path_factory.mktemp("parity"))


@pytest.mark.parametrize("platform", ["cpu", "neuron"])
def test_parity(case: Case, reference: Reference, platform: str) -> None:
    devices = jax.devices(platform)
    alone = Mesh(np.array(devices[:1]).reshape(1, 1), ("data", "model"))
    check(reference, alone)
    if not case.unsharded_only:
        check(reference, Mesh(np.array(devices[:4]).reshape(2, 2), ("data", "model")))


def check(reference: Reference, mesh: Mesh) -> None:
    """Outputs, gradients and, without sharding, generation of the checkpoint on this mesh."""
    model = pretrained.load(reference.directory, mesh)
    rows = NamedSharding(mesh, batch_spec(mesh.axis_names, rank=1))
    inputs = jax.device_put(dict(reference.inputs), rows)
    outputs, gradients = run(model.graph, model.parameters, inputs, model.architecture.task)
    for name, expected in reference.outputs.items():
        np.testing.assert_allclose(outputs[name], expected, **TOLERANCE, err_msg=name)
    expected_gradients = load_parameters(
        open_tensors(reference.gradients),
        model.architecture.keys(model.config),
        model.parameters,
        {name: value.sharding for name, value in model.parameters.items()},
    )
    for name, expected in expected_gradients.items():
        np.testing.assert_allclose(gradients[name], expected, **TOLERANCE, err_msg=name)
    if mesh.size == 1:
        check_round_trip(model, reference.directory)
        if reference.generation is not None:
            check_generation(model, reference.generation)


def run(
    graph: nnx.GraphDef, parameters: Parameters, inputs: Mapping[str, jax.Array], task: str
) -> tuple[Mapping[str, jax.Array], Parameters]:
    """The head's outputs, and the gradients of its loss."""

    @jax.jit
    def both(parameters: Parameters, inputs: Mapping[str, jax.Array]):
        def head(parameters: Parameters):
            outputs = ours.HEADS[task](merge(graph, parameters), **inputs)
            return outputs["loss"], outputs

        (_, outputs), gradients = jax.value_and_grad(head, has_aux=True)(parameters)
        return outputs, gradients

    return both(parameters, inputs)


def check_round_trip(model: pretrained.Pretrained, directory: Path) -> None:
    """Saving gives the tensors of the file, by their names, and the same config."""
    file = f"{STEMS[model.architecture.library]}.safetensors"
    with TemporaryDirectory() as again:
        pretrained.save(Path(again), model)
        saved = load_file(Path(again) / file)
        described = pretrained.describe(Path(again))
    assert described.architecture.refine(described.config, saved) == model.config
    table = model.architecture.keys(model.config)
    original = load_file(directory / file)
    original = {
        # Of some classes transformers saves the norms by TensorFlow's names, which both can read.
        name.replace("LayerNorm.gamma", "LayerNorm.weight").replace(
            "LayerNorm.beta", "LayerNorm.bias"
        ): value
        for name, value in original.items()
        if not table.ignores(name)
    }
    assert set(saved) == set(original)
    for name, tensor in original.items():
        np.testing.assert_array_equal(saved[name], tensor, err_msg=name)


def check_generation(model: pretrained.Pretrained, expected: Mapping[str, Any]) -> None:
    tokens = generate(
        model.graph,
        model.parameters,
        expected["prompt"],
        real=expected.get("real"),
        inputs=expected.get("inputs"),
        max_new_tokens=expected["tokens"].shape[1],
        context=model.config.max_seq_len,
        boundaries=model.config.boundaries,
        sampling=Sampling(temperature=0.0),
        key=jax.random.key(0),
    )
    np.testing.assert_array_equal(tokens, expected["tokens"])
