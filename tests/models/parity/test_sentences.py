"""Vectors of texts against sentence-transformers, from directories that it has written."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

from launch.pooling.encoder import SentenceEncoder
from tests.launch.test_text_tasks import WORDS, tokenizer
from tests.models.parity.cases import DECODER
from tests.models.parity.text_cases import ENCODER

pytest.importorskip("sentence_transformers", reason="the reference needs the extra `parity`")
import torch
import transformers
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.sentence_transformer.modules import Pooling

# One is longer than the model reads, and there are more than a batch.
TEXTS = ["the cat sat", "a", "on a mat where the cat is it is", " The mat  ", "it sat"] * 2
ALL = ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")
WIDTH = ENCODER["hidden_size"]
BERT = ("BertModel", ENCODER)
CASES: dict[str, tuple[tuple[str, dict[str, Any]], Sequence[torch.nn.Module]]] = {
    "all poolings": (BERT, [Pooling(WIDTH, ALL)]),
    "mean": (("RobertaModel", ENCODER), [Pooling(WIDTH, "mean"), Normalize()]),
    "dense": (
        BERT,
        [
            Pooling(WIDTH, ("cls", "max")),
            Dense(2 * WIDTH, 24),
            Dense(24, 16, bias=False, activation_function=torch.nn.Identity()),
            Normalize(),
        ],
    ),
    "decoder": (("Qwen3Model", DECODER | {"head_dim": 16}), [Pooling(WIDTH, "lasttoken")]),
}


@pytest.fixture(scope="module", params=CASES)
def reference(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[SentenceTransformer, Path]:
    """A random model, and the directory that the library has saved it to."""
    (name, config), modules = CASES[request.param]
    base, saved = (tmp_path_factory.mktemp(kind) for kind in ("base", "saved"))
    torch.manual_seed(0)
    model = getattr(transformers, name)
    model(model.config_class(**config)).save_pretrained(base)
    marks = {f"{mark.lower()}_token": f"[{mark}]" for mark in ("PAD", "UNK", "CLS", "SEP", "MASK")}
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer(), **marks).save_pretrained(
        base
    )
    made = SentenceTransformer(
        modules=[Transformer(str(base), max_seq_length=7), *modules],
        prompts={"question": "where is "},
        similarity_fn_name="dot",
    )
    made.save(str(saved), create_model_card=False)
    return made, saved


@pytest.mark.parametrize("platform", ["cpu", "neuron"])
def test_encode(reference: tuple[SentenceTransformer, Path], platform: str) -> None:
    library, directory = reference
    assert len(WORDS) <= ENCODER["vocab_size"]
    devices = np.array(jax.devices(platform)[:4])
    for mesh in (devices[:1].reshape(1, 1), devices.reshape(2, 2)):
        encoder = SentenceEncoder.open(directory, Mesh(mesh, ("data", "model")), batch=4)
        vectors = encoder.encode(TEXTS)
        np.testing.assert_allclose(vectors, library.encode(TEXTS), rtol=1e-4, atol=1e-5)
        asked = encoder.encode(TEXTS[:2], prompt="question")
        expected = library.encode(TEXTS[:2], prompt_name="question")
        np.testing.assert_allclose(asked, expected, rtol=1e-4, atol=1e-5)
        near = library.similarity(vectors, expected).numpy()
        np.testing.assert_allclose(encoder.similarity(vectors, expected), near, rtol=1e-4)
