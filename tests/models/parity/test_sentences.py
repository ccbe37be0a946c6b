"""Vectors of texts against sentence-transformers, from directories that it has written."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import PIL.Image
import pytest
from jax.sharding import Mesh

from launch.pooling.encoder import SentenceEncoder
from launch.pooling.reranker import Reranker
from models.sentences.config import CLIP
from tests.launch.test_media_tasks import write_words
from tests.launch.test_text_tasks import WORDS, tokenizer
from tests.models.parity.cases import DECODER
from tests.models.parity.text_cases import DISTILBERT, ENCODER, MODERNBERT

pytest.importorskip("sentence_transformers", reason="the reference needs the extra `parity`")
import torch
import transformers
from sentence_transformers import CrossEncoder, SentenceTransformer, SparseEncoder
from sentence_transformers.base.modules import Dense, Normalize, Router, Transformer
from sentence_transformers.sentence_transformer.modules import CLIPModel, Pooling, StaticEmbedding
from sentence_transformers.sparse_encoder.modules import SpladePooling

# One is longer than the model reads, and there are more than a batch.
TEXTS = ["the cat sat", "a", "on a mat where the cat is it is", " The mat  ", "it sat"] * 2
ALL = ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")
WIDTH = ENCODER["hidden_size"]
BERT = ("BertModel", ENCODER)
CLIP_CONFIG = {
    "projection_dim": 24,
    "text_config": {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "max_position_embeddings": 40,
    },
    "vision_config": {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "image_size": 16,
        "patch_size": 8,
    },
}


def reads(
    directory: Path, name: str, config: Mapping[str, Any] = ENCODER, **others: Any
) -> Transformer:
    """A random model of transformers with a tokenizer of words."""
    torch.manual_seed(0)
    model = getattr(transformers, name)
    model(model.config_class(**config)).save_pretrained(directory)
    marks = {f"{mark.lower()}_token": f"[{mark}]" for mark in ("PAD", "UNK", "CLS", "SEP", "MASK")}
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer(), **marks).save_pretrained(
        directory
    )
    return Transformer(str(directory), max_seq_length=7, **others)


def words(dim: int) -> StaticEmbedding:
    torch.manual_seed(1)
    return StaticEmbedding(tokenizer(), embedding_dim=dim)


def sees(directory: Path) -> CLIPModel:
    """A random CLIP, with its tokenizer and processor of images."""
    torch.manual_seed(0)
    write_words(directory)
    text = transformers.CLIPTokenizer.from_pretrained(directory)
    config = transformers.CLIPConfig(**CLIP_CONFIG)
    config.text_config.vocab_size = text.eos_token_id + 1
    config.text_config.eos_token_id = text.eos_token_id
    transformers.CLIPModel(config).save_pretrained(directory)
    image = transformers.CLIPImageProcessorPil(
        size={"shortest_edge": 16}, crop_size={"height": 16, "width": 16}
    )
    transformers.CLIPProcessor(image, text).save_pretrained(directory)
    return CLIPModel(str(directory))


def routes(directory: Path) -> Router:
    document = [reads(directory, "BertModel"), Pooling(WIDTH, "mean")]
    return Router.for_query_document(query_modules=[words(WIDTH)], document_modules=document)


Make = Callable[[Path], Sequence[torch.nn.Module]]
DENSE = [
    Pooling(WIDTH, ("cls", "max")),
    Dense(2 * WIDTH, 24),
    Dense(24, 16, bias=False, activation_function=torch.nn.Identity()),
    Normalize(),
]
MASKED = {"transformer_task": "fill-mask"}
CASES: dict[str, Make] = {
    "all poolings": lambda base: [reads(base, "BertModel"), Pooling(WIDTH, ALL)],
    "mean": lambda base: [reads(base, "RobertaModel"), Pooling(WIDTH, "mean"), Normalize()],
    "dense": lambda base: [reads(base, "BertModel"), *DENSE],
    "decoder": lambda base: [
        reads(base, "Qwen3Model", DECODER | {"head_dim": 16}),
        Pooling(WIDTH, "lasttoken"),
    ],
    "distilled": lambda base: [reads(base, "DistilBertModel", DISTILBERT), Pooling(WIDTH, "cls")],
    "permuted": lambda base: [reads(base, "MPNetModel"), Pooling(WIDTH, "mean"), Normalize()],
    "weighted": lambda base: [reads(base, "ModernBertModel", MODERNBERT), Pooling(WIDTH, ALL[4])],
    "words": lambda base: [words(20), Normalize()],
    "words, dense": lambda base: [words(20), Dense(20, 12), Normalize()],
    "sparse": lambda base: [reads(base, "BertForMaskedLM", **MASKED), SpladePooling("max")],
    "sparse sums": lambda base: [
        reads(base, "DistilBertForMaskedLM", DISTILBERT, **MASKED),
        SpladePooling("sum", activation_function="log1p_relu"),
    ],
    "routes": lambda base: [routes(base), Normalize()],
    "images": lambda base: [sees(base)],
}
TRUNCATED = {"mean": 20, "words, dense": 5}


@pytest.fixture(scope="module", params=CASES)
def reference(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Any, Path]:
    """A random model, and the directory that the library has saved it to."""
    base, saved = (tmp_path_factory.mktemp(kind) for kind in ("base", "saved"))
    is_sparse = request.param.startswith("sparse")
    made = (SparseEncoder if is_sparse else SentenceTransformer)(
        modules=CASES[request.param](base),
        prompts={"question": "where is "},
        similarity_fn_name="dot",
        **({} if is_sparse else {"truncate_dim": TRUNCATED.get(request.param)}),
    )
    made.save(str(saved), create_model_card=False)
    return made, saved


def encoded(library: Any, texts: Sequence[str], **settings: Any) -> np.ndarray:
    """The library's vectors, all of whose numbers are there."""
    sparse = {"convert_to_sparse_tensor": False} if isinstance(library, SparseEncoder) else {}
    return np.asarray(library.encode(list(texts), **sparse, **settings))


@pytest.mark.parametrize("platform", ["cpu", "neuron"])
def test_encode(reference: tuple[Any, Path], platform: str) -> None:
    library, directory = reference
    assert len(WORDS) <= ENCODER["vocab_size"]
    devices = np.array(jax.devices(platform)[:4])
    for mesh in (devices[:1].reshape(1, 1), devices.reshape(2, 2)):
        encoder = SentenceEncoder.open(directory, Mesh(mesh, ("data", "model")), batch=4)
        vectors = encoder.encode(TEXTS)
        np.testing.assert_allclose(vectors, encoded(library, TEXTS), rtol=1e-4, atol=1e-5)
        asked = encoder.encode(TEXTS[:2], prompt="question")
        expected = encoded(library, TEXTS[:2], prompt_name="question")
        np.testing.assert_allclose(asked, expected, rtol=1e-4, atol=1e-5)
        near = library.similarity(vectors, expected).numpy()
        np.testing.assert_allclose(encoder.similarity(vectors, expected), near, rtol=1e-4)
        for task in encoder.config.routes:
            got = encoder.encode(TEXTS, task=task)
            np.testing.assert_allclose(
                got, encoded(library, TEXTS, task=task), rtol=1e-4, atol=1e-5
            )
        if encoder.config.source == CLIP:
            numbers = np.random.default_rng(0).integers(0, 256, (3, 20, 24, 3), np.uint8)
            images = [PIL.Image.fromarray(image) for image in numbers]
            got, expected = encoder.encode_images(images), library.encode(images)
            np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("platform", ["cpu", "neuron"])
@pytest.mark.parametrize("labels", [1, 3])
def test_pairs_are_scored(labels: int, platform: str, tmp_path: Path) -> None:
    reads(tmp_path / "base", "BertForSequenceClassification", ENCODER | {"num_labels": labels})
    library = CrossEncoder(str(tmp_path / "base"), max_length=12)
    library.save_pretrained(str(tmp_path / "saved"))
    pairs = [(TEXTS[0], text) for text in TEXTS]
    devices = np.array(jax.devices(platform)[:4])
    for mesh in (devices[:1].reshape(1, 1), devices.reshape(2, 2)):
        reranker = Reranker.open(tmp_path / "saved", Mesh(mesh, ("data", "model")), batch=4)
        scores = reranker.predict(pairs)
        np.testing.assert_allclose(scores, library.predict(pairs), rtol=1e-4, atol=1e-5)
        if labels == 1:
            ranked = library.rank(TEXTS[0], TEXTS[:5])
            places = [place for place, _ in reranker.rank(TEXTS[0], TEXTS[:5])]
            assert places == [row["corpus_id"] for row in ranked]
