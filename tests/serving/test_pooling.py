"""Vectors, scores and classes of texts over HTTP, against the model on JAX's cpu platform."""

import json
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from openai import BadRequestError, OpenAI
from scipy.special import expit, softmax

from launch.errors import LaunchError
from launch.meshes import make_mesh
from launch.pooling.encoder import SentenceEncoder
from launch.serving.config import EngineConfig, ModelNames
from launch.serving.kinds import open_model
from launch.serving.model_choice import ModelChoice
from models import pretrained
from models.parameters import merge
from models.pretrained import Pretrained
from tests.launch.checkpoint_files import write_directory
from tests.launch.sentence_files import write_modules
from tests.launch.test_text_tasks import LABELS, WORDS, write
from tests.serving.http_server import Listening, listening
from tests.serving.page_examples import examples, run_example

TEXTS = ["the cat sat", "on a mat", "where is it", "it is on a mat", "the cat is a cat"]
ENGINE = EngineConfig(
    num_seqs_buckets="4", prefill_buckets="16", max_num_batched_tokens=64, max_num_waiting=8
)
# Two lengths, which are computed apart.
BUCKETS = {
    "vectors": replace(ENGINE, prefill_buckets="6,16"),
    "sentences": replace(ENGINE, prefill_buckets="9"),
    "classes": replace(ENGINE, scan_layers=True),
}
MODELS = {
    "vectors": ("BertModel", {}),
    "classes": ("BertForSequenceClassification", {"num_hidden_layers": 2}),
    "pairs": ("RobertaForSequenceClassification", {"id2label": {"0": "LABEL_0"}}),
}


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    made = {
        name: write(
            folder / name,
            architecture,
            **{"vocab_size": len(WORDS), "num_hidden_layers": 1, **changes},
        )
        for name, (architecture, changes) in MODELS.items()
    }
    write_directory(folder / "decoder", dtype="float32")
    return {**made, "decoder": folder / "decoder"}


def choose(directory: Path, **names: str) -> ModelChoice:
    engine = BUCKETS.get(directory.name, ENGINE)
    return ModelChoice(Path("unused"), directory, "model=1", engine, ModelNames(**names))


@pytest.fixture(scope="module")
def servers(directories: dict[str, Path]) -> Iterator[dict[str, Listening]]:
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(
                listening(
                    stack.enter_context(
                        open_model(
                            choose(directory, runner="pooling" if name == "decoder" else "auto")
                        )
                    )
                )
            )
            for name, directory in directories.items()
        }


def on_cpu(
    directory: Path, texts: list[list[int]], types: list[list[int]] | None = None
) -> list[dict[str, np.ndarray]]:
    """What the model itself makes of texts, those of a length together."""
    cpu = jax.devices("cpu")[0]
    with jax.default_device(cpu):
        model: Pretrained = pretrained.load(directory)
        call = jax.jit(lambda p, t, k: merge(model.graph, p)(t, types=k))
        made: list[dict[str, np.ndarray]] = [{} for _ in texts]
        for length in {len(text) for text in texts}:
            places = [i for i, text in enumerate(texts) if len(text) == length]
            rows = np.array([texts[i] for i in places])
            kinds = np.zeros_like(rows) if types is None else np.array([types[i] for i in places])
            outputs = call(jax.device_put(model.parameters, cpu), rows, kinds)
            for row, place in enumerate(places):
                made[place] = {name: np.asarray(value[row]) for name, value in outputs.items()}
    return made


def tokens_of(text: str, other: str | None = None) -> list[int]:
    words = f"[CLS] {text} [SEP]" + ("" if other is None else f" {other} [SEP]")
    return [WORDS.index(word) for word in words.split()]


def unit(vector: np.ndarray) -> np.ndarray:
    return vector / np.linalg.norm(vector)


@pytest.mark.slow
def test_embeddings_by_openais_client(
    servers: dict[str, Listening], directories: dict[str, Path]
) -> None:
    outputs = on_cpu(directories["vectors"], [tokens_of(text) for text in TEXTS])
    expected = [unit(each["hidden"][0]) for each in outputs]
    with OpenAI(base_url=f"{servers['vectors'].url}/v1", api_key="x", max_retries=0) as client:
        made = client.embeddings.create(model="vectors", input=TEXTS)  # base64 on the wire
        np.testing.assert_allclose([entry.embedding for entry in made.data], expected, atol=1e-5)
        assert made.usage.prompt_tokens == sum(len(tokens_of(text)) for text in TEXTS)
        plain = client.embeddings.create(
            model="vectors", input=tokens_of(TEXTS[0]), encoding_format="float", dimensions=5
        )
        np.testing.assert_allclose(plain.data[0].embedding, unit(expected[0][:5]), atol=1e-5)
        for wrong in ({"input": []}, {"input": "a", "dimensions": 99}, {"input": ["cat " * 40]}):
            with pytest.raises(BadRequestError):
                client.embeddings.create(model="vectors", **wrong)


def test_a_decoder_gives_the_vector_of_the_last_token(
    servers: dict[str, Listening], directories: dict[str, Path]
) -> None:
    """A text's vector does not depend on its neighbours or on the padding behind it."""
    texts = ["the statement", "while"]
    _, many = servers["decoder"].ask("/v1/embeddings", {"input": texts})
    for text, entry in zip(texts, many["data"], strict=True):
        _, alone = servers["decoder"].ask("/v1/embeddings", {"input": text})
        np.testing.assert_allclose(entry["embedding"], alone["data"][0]["embedding"], atol=1e-6)
    model = pretrained.load(directories["decoder"])
    tokens = np.array([[5, 9, 7]])
    hidden = jax.jit(lambda p: merge(model.graph, p).encode(tokens))(model.parameters)
    _, made = servers["decoder"].ask("/v1/embeddings", {"input": [5, 9, 7]})
    np.testing.assert_allclose(made["data"][0]["embedding"], unit(hidden[0, -1]), atol=1e-5)


def test_classes(servers: dict[str, Listening], directories: dict[str, Path]) -> None:
    status, made = servers["classes"].ask("/classify", {"model": "classes", "input": TEXTS})
    assert status == 200
    outputs = on_cpu(directories["classes"], [tokens_of(text) for text in TEXTS])
    for each, entry in zip(outputs, made["data"], strict=True):
        chances = softmax(each["logits"])
        np.testing.assert_allclose(entry["probs"], chances, atol=1e-5)
        assert entry["label"] == LABELS[str(np.argmax(chances))]


def test_pairs_are_scored_and_ranked(
    servers: dict[str, Listening], directories: dict[str, Path]
) -> None:
    tokens = [tokens_of(TEXTS[0], text) for text in TEXTS]
    first = len(tokens_of(TEXTS[0]))
    types = [[0] * first + [1] * (len(text) - first) for text in tokens]
    outputs = on_cpu(directories["pairs"], tokens, types)
    expected = [float(expit(each["logits"][0])) for each in outputs]
    body = {"text_1": TEXTS[0], "text_2": TEXTS}
    _, made = servers["pairs"].ask("/score", body)
    np.testing.assert_allclose([e["score"] for e in made["data"]], expected, atol=1e-5)
    best = np.argsort(-np.array(expected))[:3]
    for path in ("/rerank", "/v1/rerank", "/v2/rerank"):
        ask = {"query": TEXTS[0], "documents": [TEXTS[0], *({"text": t} for t in TEXTS[1:])]}
        _, ranking = servers["pairs"].ask(path, {**ask, "top_n": 3})
        assert [entry["index"] for entry in ranking["results"]] == best.tolist()
        assert ranking["results"][0]["document"] == {"text": TEXTS[best[0]]}


def test_vectors_score_by_their_cosine(servers: dict[str, Listening]) -> None:
    _, vectors = servers["vectors"].ask("/v1/embeddings", {"input": TEXTS})
    first, *others = (np.array(entry["embedding"]) for entry in vectors["data"])
    _, made = servers["vectors"].ask("/v1/score", {"text_1": TEXTS[0], "text_2": TEXTS[1:]})
    cosines = [first @ other for other in others]
    np.testing.assert_allclose([e["score"] for e in made["data"]], cosines, atol=1e-5)


@pytest.mark.parametrize(
    ("server", "path", "body", "parameter"),
    [
        ("vectors", "/v1/embeddings", {}, "input"),
        ("vectors", "/v1/embeddings", {"input": ""}, "input"),
        ("vectors", "/v1/embeddings", {"input": [[1], "a", 3]}, "input"),
        ("vectors", "/v1/embeddings", {"input": [999]}, "input"),
        ("vectors", "/v1/embeddings", {"input": "a", "encoding_format": "x"}, "encoding_format"),
        ("vectors", "/v1/embeddings", {"input": ["a"] * 2049}, "input"),
        ("pairs", "/score", {"text_1": ["a", "b"], "text_2": ["a"] * 3}, "text_1"),
        ("pairs", "/rerank", {"query": "a", "documents": [3]}, "documents"),
        ("pairs", "/rerank", {"documents": ["a"]}, "query"),
        ("pairs", "/rerank", {"query": "a", "documents": ["cat " * 99]}, "documents"),
        ("classes", "/classify", {"input": None}, "input"),
    ],
)
def test_bad_bodies(
    servers: dict[str, Listening], server: str, path: str, body: Any, parameter: str
) -> None:
    status, made = servers[server].ask(path, body)
    assert (status, made["error"]["param"]) == (400, parameter)


def test_what_the_model_does_not_do_is_a_404(servers: dict[str, Listening]) -> None:
    status, made = servers["classes"].ask("/v1/embeddings", {"input": "a"})
    assert (status, made["error"]["code"]) == (404, "unknown_url")
    assert "/classify" in made["error"]["message"]
    status, made = servers["vectors"].ask("/v1/embeddings", {"input": "a", "model": "gpt"})
    assert (status, made["error"]["code"]) == (404, "model_not_found")


@pytest.mark.parametrize(
    ("kind", "line"), [(kind, line) for kind in ("vectors", "classes") for line in examples(kind)]
)
def test_examples_of_the_readme(
    servers: dict[str, Listening], tmp_path: Path, kind: str, line: str
) -> None:
    made = json.loads(run_example(line, servers[kind], tmp_path))
    assert made.get("data") or made["results"]


def test_metrics(servers: dict[str, Listening]) -> None:
    servers["classes"].ask("/classify", {"input": "a"})
    text = servers["classes"].ask("/metrics")[1]
    for name in ("num_requests_waiting", "e2e_request_latency_seconds_count", "prompt_tokens"):
        assert f"vllm:{name}" in text


def test_a_directory_of_sentence_transformers(directories: dict[str, Path], tmp_path: Path) -> None:
    """Its modules are what is served; `tests/models/parity/test_sentences.py` has their results."""
    directory = tmp_path / "sentences"
    shutil.copytree(directories["vectors"], directory)
    write_modules(directory, {"pooling_mode": ["max", "cls"]})
    settings = {"max_seq_length": 9, "do_lower_case": True}
    (directory / "sentence_bert_config.json").write_text(json.dumps(settings))
    expected = SentenceEncoder.open(directory, make_mesh({"model": 1})).encode(TEXTS)
    with open_model(choose(directory)) as model, listening(model) as server:
        _, made = server.ask("/v1/embeddings", {"input": [text.upper() for text in TEXTS]})
    np.testing.assert_allclose([e["embedding"] for e in made["data"]], expected, atol=1e-5)


def test_a_model_that_is_not_served(tmp_path: Path) -> None:
    directory = write(tmp_path / "fill", "BertForMaskedLM", vocab_size=len(WORDS))
    with pytest.raises(LaunchError, match="made for fill-mask, which is not served"):
        open_model(choose(directory))


def test_other_paths_to_the_same(servers: dict[str, Listening]) -> None:
    """`/pooling` and `/invocations`; of a model with classes `/pooling` tells the logits."""
    (vector,) = servers["vectors"].ask("/v1/embeddings", {"input": "cat"})[1]["data"]
    (pooled,) = servers["vectors"].ask("/pooling", {"input": "cat"})[1]["data"]
    assert (pooled["object"], pooled["data"]) == ("pooling", vector["embedding"])
    assert servers["vectors"].ask("/invocations", {"input": "cat"})[1]["data"] == [vector]
    (classes,) = servers["classes"].ask("/invocations", {"input": "cat"})[1]["data"]
    (logits,) = servers["classes"].ask("/pooling", {"input": "cat"})[1]["data"]
    np.testing.assert_allclose(softmax(logits["data"]), classes["probs"], atol=1e-6)
