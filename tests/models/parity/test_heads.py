"""Features of checkpoints with heads of pre-training and of tasks, against transformers' models."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models import pretrained
from models.parameters import merge

REASON = "it is not installed: it needs the extra `parity`"
torch = pytest.importorskip("torch", reason=REASON)
transformers = pytest.importorskip("transformers", reason=REASON)

TEXT = {
    "vocab_size": 60,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 32,
}
FACTORISED = TEXT | {"embedding_size": 16}
IMAGE = {k: v for k, v in TEXT.items() if k not in ("vocab_size", "max_position_embeddings")} | {
    "image_size": 16,
    "patch_size": 4,
}
SOUND = {k: v for k, v in TEXT.items() if k != "max_position_embeddings"} | {
    "conv_dim": [16, 16],
    "conv_stride": [5, 2],
    "conv_kernel": [10, 3],
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 2,
    "codevector_dim": 16,
    "proj_codevector_dim": 16,
}
# (class of the checkpoint, its config, the task) -> features of the base model are compared.
CASES: list[tuple[str, str, dict[str, Any]]] = [
    ("BertForPreTraining", "feature-extraction", TEXT),
    ("BertForMaskedLM", "feature-extraction", TEXT),
    ("AlbertForPreTraining", "feature-extraction", FACTORISED),
    ("ElectraForPreTraining", "feature-extraction", FACTORISED),
    (
        "MobileBertForPreTraining",
        "feature-extraction",
        FACTORISED | {"intermediate_size": 16, "intra_bottleneck_size": 16},
    ),
    (
        "DistilBertForQuestionAnswering",
        "feature-extraction",
        {"vocab_size": 60} | {"dim": 32} | {"n_layers": 2, "n_heads": 4, "hidden_dim": 48},
    ),
    ("ViTForImageClassification", "image-feature-extraction", IMAGE),
    ("ViTForMaskedImageModeling", "image-feature-extraction", IMAGE | {"encoder_stride": 4}),
    ("BeitForMaskedImageModeling", "image-feature-extraction", IMAGE | {"vocab_size": 20}),
    ("Wav2Vec2ForPreTraining", "audio-feature-extraction", SOUND),
    ("UniSpeechForPreTraining", "audio-feature-extraction", SOUND),
    ("UniSpeechSatForPreTraining", "audio-feature-extraction", SOUND),
    ("HubertForCTC", "audio-feature-extraction", SOUND),
]


@pytest.mark.parametrize(("name", "task", "config"), CASES, ids=[case[0] for case in CASES])
def test_features_of_any_head(name: str, task: str, config: dict[str, Any], tmp_path: Path) -> None:
    torch.manual_seed(0)
    theirs = getattr(transformers, name)
    reference = theirs(theirs.config_class(**config)).eval()
    reference.save_pretrained(tmp_path)
    draw = np.random.default_rng(0)
    if task == "feature-extraction":
        tokens = draw.integers(5, 60, (2, 9)).astype(np.int32)
        given = {"input_ids": torch.from_numpy(tokens).long()}
    elif task == "image-feature-extraction":
        tokens = draw.normal(size=(2, 16, 16, 3)).astype(np.float32)
        given = {"pixel_values": torch.from_numpy(tokens.transpose(0, 3, 1, 2).copy())}
    else:
        tokens = draw.normal(size=(2, 400)).astype(np.float32)
        given = {"input_values": torch.from_numpy(tokens)}
    with torch.no_grad():
        expected = reference.base_model(**given).last_hidden_state.numpy()
    model = pretrained.load(tmp_path, tasks=(task,))
    module = merge(model.graph, model.parameters)
    if task == "feature-extraction":
        hidden = module(tokens)["hidden"]
    else:
        hidden = module.features(tokens).hidden
    np.testing.assert_allclose(hidden, expected, atol=1e-4, rtol=1e-4)
