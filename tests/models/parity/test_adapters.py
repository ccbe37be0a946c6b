"""Adapters in PEFT's layout, read by peft itself, and read back as peft writes them."""

from pathlib import Path

import numpy as np
import pytest

from launch.finetuning.adapter_files import load_adapter, save_adapter
from models import pretrained
from tests.training.test_lora import CASES, base_of, outputs, with_random_adapters

pytest.importorskip("torch", reason="the reference needs the extra `parity`")
pytest.importorskip("peft", reason="the reference needs the extra `parity`")
import peft
import torch
import transformers

NAMES = ("LlamaForCausalLM", "Phi3ForCausalLM", "BertForSequenceClassification")


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("name", NAMES)
def test_peft_reads_and_writes_the_same_adapters(name: str, tmp_path: Path) -> None:
    adapted, parameters = with_random_adapters(name, rslora=name.startswith("Phi3"))
    pretrained.save(tmp_path / "base", base_of(name))
    save_adapter(tmp_path / "adapter", adapted, parameters, base=str(tmp_path / "base"))
    base = getattr(transformers, name).from_pretrained(tmp_path / "base")
    model = peft.PeftModel.from_pretrained(base, tmp_path / "adapter").eval()
    inputs = CASES[name][2]
    with torch.no_grad():
        expected = model(input_ids=torch.tensor(inputs["tokens"]).long()).logits.numpy()
    got = outputs(adapted.model, parameters, inputs)
    got = got["logits"] if isinstance(got, dict) else got
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)
    model.save_pretrained(tmp_path / "again")
    _, loaded = load_adapter(tmp_path / "again", adapted.base)
    assert loaded.keys() == adapted.trained()
    for path, value in loaded.items():
        np.testing.assert_array_equal(value, parameters[path], err_msg=path)
