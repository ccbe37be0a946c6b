"""Recurrent networks against those of PyTorch."""

import jax
import numpy as np
import pytest
from flax import nnx

from models.parameters import Parameters, merge, split
from models.recurrent.model import CELLS, Forecaster, ForecasterConfig

torch = pytest.importorskip(
    "torch", reason="torch is not installed: the reference needs the extra `parity`"
)
SERIES, WIDTH, LAYERS = 3, 16, 2
KNOWN = np.random.default_rng(0).normal(size=(4, 9, SERIES)).astype(np.float32)
THEIRS = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU}


@pytest.mark.parametrize("platform", ["cpu", "neuron"])
@pytest.mark.parametrize("cell", CELLS)
def test_forecast(cell: str, platform: str) -> None:
    config = ForecasterConfig(cell, SERIES, WIDTH, LAYERS, horizon=2)
    graph, made = split(Forecaster(config, rngs=nnx.Rngs(0)))
    rng = np.random.default_rng(1)
    parameters = {k: rng.normal(0, 0.5, v.shape).astype(np.float32) for k, v in made.items()}
    with jax.default_device(jax.devices(platform)[0]):
        got = jax.jit(lambda parameters, known: merge(graph, parameters)(known))(parameters, KNOWN)
    kernel = parameters["projection.kernel"]
    expected = np.tensordot(their_state(cell, parameters), kernel, 1)
    np.testing.assert_allclose(got, expected + parameters["projection.bias"], rtol=1e-4, atol=1e-5)


def their_state(cell: str, parameters: Parameters) -> np.ndarray:
    """PyTorch's after the last time [B, H], with the same weights."""
    network = THEIRS[cell](SERIES, WIDTH, LAYERS, batch_first=True)
    biases = {"lstm": ("dense_h", "bias_hh"), "gru": ("dense_i", "bias_ih")}
    ours, theirs = biases[cell]
    with torch.no_grad():
        for number in range(LAYERS):
            path = f"layers.{number}.cell"
            values = {
                "weight_ih": parameters[f"{path}.dense_i.kernel"].T,
                "weight_hh": parameters[f"{path}.dense_h.kernel"].T,
                "bias_ih": np.zeros(1, np.float32),
                "bias_hh": np.zeros(1, np.float32),
                theirs: parameters[f"{path}.{ours}.bias"],
            }
            for name, value in values.items():
                getattr(network, f"{name}_l{number}").copy_(torch.tensor(np.array(value)))
        return network(torch.from_numpy(KNOWN))[0][:, -1].numpy()
