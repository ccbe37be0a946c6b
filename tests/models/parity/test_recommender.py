"""DLRM against the embedding bags of PyTorch."""

from typing import Any

import numpy as np
import pytest

from tests.models.test_recommender import CONFIG, DENSE, IDS, build, run

torch = pytest.importorskip(
    "torch", reason="torch is not installed: the reference needs the extra `parity`"
)


def test_logits_are_those_of_torch() -> None:
    graph, parameters = build()
    weights = {name: torch.from_numpy(np.array(value)) for name, value in parameters.items()}

    def layers(name: str, x: Any, count: int) -> Any:
        for i in range(count):
            x = x @ weights[f"{name}.{i}.kernel"] + weights[f"{name}.{i}.bias"]
            x = x if (name, i) == ("top", count - 1) else torch.relu(x)
        return x

    below = layers("dense", torch.from_numpy(DENSE), 2)
    vectors, first = [below], 0
    for kind, size in enumerate(CONFIG.vocab_sizes):
        bag = torch.from_numpy(np.maximum(IDS[:, kind], 0)).long()
        real = torch.from_numpy((IDS[:, kind] >= 0).astype(np.float32))
        table = weights["table.table"][first : first + size]
        vectors.append(
            torch.nn.functional.embedding_bag(bag, table, mode="sum", per_sample_weights=real)
        )
        first += size
    stacked = torch.stack(vectors, dim=1)
    products = torch.bmm(stacked, stacked.transpose(1, 2))
    rows, columns = torch.tril_indices(4, 4, offset=-1)
    expected = layers("top", torch.cat([below, products[:, rows, columns]], dim=1), 2)[:, 0]
    np.testing.assert_allclose(run(graph, parameters, DENSE, IDS), expected, rtol=1e-5, atol=1e-5)
