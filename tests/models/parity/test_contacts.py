"""Contacts of residues, against ESM of transformers."""

from pathlib import Path

import numpy as np
import pytest

from models import pretrained
from models.errors import InputError
from models.parameters import merge
from tests.models.parity.cases import CASES

torch = pytest.importorskip(
    "torch", reason="torch is not installed: the reference needs the extra `parity`"
)
from tests.models.parity.reference import make_model  # noqa: E402

END, PAD = 2, 1


def test_contacts_are_those_of_transformers(tmp_path: Path) -> None:
    case = next(case for case in CASES if case.name == "EsmForMaskedLM 2")
    model = make_model(case)
    model.set_attn_implementation("eager")
    model.save_pretrained(tmp_path)
    tokens = np.random.default_rng(0).integers(4, 20, (2, 10))
    tokens[:, 0], tokens[0, -1], tokens[1, 6], tokens[1, 7:] = 0, END, END, PAD
    real = tokens != PAD
    with torch.no_grad():
        expected = model.predict_contacts(
            torch.from_numpy(tokens), torch.from_numpy(real.astype(np.int64))
        )
    ours = pretrained.load(tmp_path)
    got = merge(ours.graph, ours.parameters).contacts(tokens, real)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


def test_other_encoders_have_no_contacts(tmp_path: Path) -> None:
    case = next(case for case in CASES if case.name == "BertModel")
    make_model(case).save_pretrained(tmp_path)
    ours = pretrained.load(tmp_path)
    with pytest.raises(InputError, match="no contact prediction head"):
        merge(ours.graph, ours.parameters).contacts(np.zeros((1, 4), np.int32))
