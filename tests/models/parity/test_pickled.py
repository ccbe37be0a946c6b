"""Files of PyTorch's tensors, as `torch.save` writes them in both layouts, without PyTorch."""

from pathlib import Path

import numpy as np
import pytest

from models.weights.directory import open_tensors

torch = pytest.importorskip(
    "torch", reason="torch is not installed: the reference needs the extra `parity`"
)

TENSORS = {
    "matrix": torch.arange(12.0).reshape(3, 4),
    "transposed": torch.arange(24.0).reshape(4, 6).t(),
    "half": torch.arange(7).half(),
    "bfloat16": torch.arange(4).bfloat16().reshape(2, 2),
    "integers": torch.arange(5),
    "truth": torch.tensor([True, False]),
    "scalar": torch.tensor(3.0),
    "empty": torch.zeros(0, 3),
    "parameter": torch.nn.Parameter(torch.ones(2)),
}
TENSORS["part"] = TENSORS["matrix"][1:]


@pytest.mark.parametrize("is_archive", [True, False])
@pytest.mark.parametrize("is_nested", [True, False])
def test_tensors_are_those_that_were_saved(
    tmp_path: Path, is_archive: bool, is_nested: bool
) -> None:
    saved = {"state_dict": TENSORS, "step": 3} if is_nested else TENSORS
    torch.save(saved, tmp_path / "pytorch_model.bin", _use_new_zipfile_serialization=is_archive)
    stored = open_tensors(tmp_path)
    assert stored.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        seen = stored[name].view()
        assert seen.shape == tuple(tensor.shape)
        assert str(seen.dtype) == str(tensor.dtype).removeprefix("torch.")
        np.testing.assert_array_equal(
            seen.astype(np.float32), tensor.detach().to(torch.float32).numpy()
        )


@pytest.mark.parametrize("is_archive", [True, False])
def test_a_modules_state(tmp_path: Path, is_archive: bool) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    torch.save(
        module.state_dict(),
        tmp_path / "pytorch_model.bin",
        _use_new_zipfile_serialization=is_archive,
    )
    stored = open_tensors(tmp_path)
    for name, tensor in module.state_dict().items():
        np.testing.assert_array_equal(stored[name].view(), tensor.numpy())
