"""Hidden states and attentions on request, against those of transformers."""

from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from models import pretrained
from models.observe import observe
from models.parameters import merge
from tests.models.parity.case import Case
from tests.models.parity.cases import CASES

torch = pytest.importorskip(
    "torch", reason="torch is not installed: the reference needs the extra `parity`"
)
from tests.models.parity.reference import make_model  # noqa: E402

NAMES = ("BertModel", "LlamaForCausalLM 1 and 2", "GptOssForCausalLM", "ViTModel", "RoFormerModel")
LATER = {"BertModel": 0, "RoFormerModel": 0}
"""Blocks at the end whose output transformers gives normed; of most models the last one."""


def inputs_of(case: Case) -> tuple[str, np.ndarray]:
    rng = np.random.default_rng(0)
    if "image_size" in case.config:
        size = case.config["image_size"]
        return "pixel_values", rng.normal(size=(2, size, size, 3)).astype(np.float32)
    return "input_ids", rng.integers(3, case.config["vocab_size"], (2, case.length))


@pytest.mark.parametrize("name", NAMES)
def test_what_is_inside_is_that_of_transformers(name: str, tmp_path: Path) -> None:
    case = next(case for case in CASES if case.name == name)
    model = make_model(case)
    model.set_attn_implementation("eager")
    model.save_pretrained(tmp_path)
    key, values = inputs_of(case)
    theirs = values if key == "input_ids" else np.moveaxis(values, -1, 1)
    with torch.no_grad():
        expected = model(
            **{key: torch.from_numpy(np.ascontiguousarray(theirs))},
            output_hidden_states=True,
            output_attentions=True,
        )
    ours = pretrained.load(tmp_path)
    call = "features" if key == "pixel_values" else "__call__"

    @partial(jax.jit, static_argnums=0)
    def look(graph: Any, parameters: Any, values: jax.Array) -> Any:
        return observe(merge(graph, parameters), values, call=call)

    inside = look(ours.graph, ours.parameters, values)
    hidden = list(inside.hidden.values())
    assert len(hidden) == len(expected.hidden_states) - 1
    for got, want in list(zip(hidden, expected.hidden_states[1:], strict=True))[
        : len(hidden) - LATER.get(name, 1)
    ]:
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    assert len(inside.attentions) == len(expected.attentions)
    for got, want in zip(inside.attentions.values(), expected.attentions, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    plain = merge(ours.graph, ours.parameters)
    np.testing.assert_allclose(
        jax.tree.leaves(inside.output)[0],
        jax.tree.leaves(getattr(plain, call)(values))[0],
        rtol=1e-5,
        atol=1e-6,
    )
