"""Adapters over HTTP: what one adds to a text is what it adds when it is merged into the model."""

import asyncio
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from openai import AsyncOpenAI

from launch.finetuning.adapter_files import save_adapter
from launch.finetuning.lora import LoRA, adapt
from launch.serving.adapters.host import AdapterHost
from launch.serving.config import EngineConfig, ModelNames, ServerConfig
from launch.serving.errors import RequestError, ServingError
from launch.serving.kinds import open_model
from launch.serving.model_choice import ModelChoice
from launch.serving.requests import Adapter, Request
from launch.text import FileTokenizer
from models import pretrained
from models.generate import generate
from models.parameters import Parameters
from models.pretrained import Described, Pretrained
from models.sampling import Sampling
from tests.launch.checkpoint_files import FIELDS, VOCAB, write_directory
from tests.models.tiny import random_model
from tests.serving.http_server import Listening, listening
from tests.serving.page_examples import examples, run_example

KEY = "of-the-tests"
TOKENS = 10  # of an answer
ADAPTERS = {
    "all": LoRA(rank=4, alpha=8.0),
    "two": LoRA(rank=2, alpha=2.0, targets="q_proj,down_proj"),
    "root": LoRA(rank=3, alpha=4.0, targets="o_proj,gate_proj", rslora=True),
    "high": LoRA(rank=5),
}
PROMPTS = np.random.default_rng(0).integers(1, VOCAB, (6, 24))
PROMPTS[:, :16] = PROMPTS[0, :16]  # a beginning that all share


@dataclass
class Models:
    """A model, its adapters' directories, and the weights with each merged in."""

    base: Pretrained
    directory: Path
    merged: Mapping[str, Parameters]

    def texts(self, name: str) -> list[str]:
        """Greedy answers to PROMPTS."""
        made = generate(
            self.base.graph,
            self.merged[name],
            PROMPTS,
            max_new_tokens=TOKENS,
            context=64,
            sampling=Sampling(temperature=0.0),
            key=jax.random.key(0),
        )
        texts = []
        for row in made:
            stream = FileTokenizer(self.directory / "tokenizer.json").stream()
            texts.append(stream.feed(row) + stream.finish())
        return texts


def write_adapter(directory: Path, base: Pretrained, lora: LoRA, seed: int) -> Parameters:
    """A random adapter in PEFT's layout; the weights with it merged in."""
    adapted = adapt(Described(base.architecture, base.config, base.fields), lora)
    rng = np.random.default_rng(seed)
    own = {
        name: rng.normal(0, 0.5, leaf.shape).astype(leaf.dtype)
        for name, leaf in adapted.parameters().items()
        if ".lora." in name
    }
    save_adapter(directory, adapted, own, base="the base")
    weights = dict(base.parameters)
    scale = lora.alpha / (lora.rank**0.5 if lora.rslora else lora.rank)
    for path in [name.removesuffix(".lora.a") for name in own if name.endswith(".a")]:
        product = np.tensordot(own[f"{path}.lora.a"], own[f"{path}.lora.b"], axes=1)
        kernel = weights[f"{path}.kernel"]
        weights[f"{path}.kernel"] = jax.device_put(np.asarray(kernel) + scale * product)
    return weights


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    folder = tmp_path_factory.mktemp("models")
    directory = write_directory(folder / "qwen", dtype="float32")
    base = pretrained.load(directory)
    weights = {
        name: write_adapter(folder / name, base, lora, seed)
        for seed, (name, lora) in enumerate(ADAPTERS.items())
    }
    other = random_model({**FIELDS, "hidden_size": 8, "dtype": "float32"})
    write_adapter(folder / "other", other, LoRA(rank=2), 9)
    return Models(base, directory, {"qwen": base.parameters, **weights})


@pytest.fixture(scope="module")
def server(models: Models) -> Iterator[Listening]:
    engine = EngineConfig(
        max_num_seqs=4,
        num_seqs_buckets="4",
        prefill_rows_buckets="1",
        prefill_buckets="16",
        max_num_batched_tokens=16,
        block_size=4,
        max_loras=2,
        max_lora_rank=4,
        lora_modules=",".join(f"{n}={models.directory.parent / n}" for n in ("all", "two")),
        lora_folders=str(models.directory.parent),
    )
    choice = ModelChoice(Path("unused"), models.directory, "model=1", engine, ModelNames())
    config = ServerConfig(port=0, api_key=KEY)
    with open_model(choice) as backend, listening(backend, config) as server:
        yield server


def answers(server: Listening, names: list[str]) -> list[list[str]]:
    """Returns the answers of each model to PROMPTS, all asked at once."""

    async def ask() -> list[list[str]]:
        async with AsyncOpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0) as client:

            async def text(name: str, prompt: list[int]) -> str:
                made = await client.completions.create(
                    model=name,
                    prompt=prompt,
                    max_tokens=TOKENS,
                    temperature=0,
                    extra_body={"ignore_eos": True},
                )
                assert made.model == name
                return made.choices[0].text

            rows = [[text(name, prompt) for name in names] for prompt in PROMPTS.tolist()]
            made = [await asyncio.gather(*row) for row in await _all_begun(rows)]
            return [list(column) for column in zip(*made, strict=True)]

    return asyncio.run(ask())


async def _all_begun(rows: list[list[object]]) -> list[list["asyncio.Future[str]"]]:
    return [[asyncio.ensure_future(each) for each in row] for row in rows]  # type: ignore[arg-type]


def ask(server: Listening, path: str, body: object = None) -> tuple[int, Any]:
    return server.ask(path, body, headers={"Authorization": f"Bearer {KEY}"})


def load(server: Listening, name: str, path: Path) -> tuple[int, Any]:
    return ask(server, "/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(path)})


@pytest.mark.slow
def test_many_in_one_batch_answer_as_if_merged(models: Models, server: Listening) -> None:
    names = ["qwen", "all", "two"]
    expected = [models.texts(name) for name in names]
    assert len({tuple(texts) for texts in expected}) == 3
    assert answers(server, names) == expected


def test_they_are_loaded_and_unloaded(models: Models, server: Listening) -> None:
    """Who comes into a place gets nothing of who was there before."""
    folder = models.directory.parent
    assert ask(server, "/v1/unload_lora_adapter", {"lora_name": "two"})[0] == 200
    status, made = ask(server, "/v1/completions", {"model": "two", "prompt": "a"})
    assert (status, made["error"]["code"]) == (404, "model_not_found")
    assert load(server, "root", folder / "root")[0] == 200
    listed = ask(server, "/v1/models")[1]["data"]
    assert [(entry["id"], entry["parent"]) for entry in listed] == [
        ("qwen", None),
        ("all", "qwen"),
        ("root", "qwen"),
    ]
    assert load(server, "again", folder / "two")[0] == 200
    names = ["root", "again", "qwen", "all"]  # more at once than there are places
    expected = [models.texts(name.replace("again", "two")) for name in names]
    assert answers(server, names) == expected
    assert ask(server, "/v1/unload_lora_adapter", {"lora_name": "again"})[0] == 200
    assert ask(server, "/v1/unload_lora_adapter", {"lora_name": "root"})[0] == 200


def test_examples_of_the_readme(models: Models, server: Listening) -> None:
    folder = models.directory.parent
    for line in examples("adapters"):
        run_example(line.replace("tuned/adapter-9", str(folder / "root")), server, folder, KEY)


@pytest.mark.parametrize(
    ("name", "directory", "message"),
    [
        ("x", "other", "does not fit this Qwen3ForCausalLM: it has other shapes"),
        ("x", "high", "has the rank 5; --max_lora_rank=4"),
        ("x", "nowhere", "holds no adapters"),
        ("x", "../../etc", "does not lie below a folder of --lora_folders"),
        ("all", "two", "'all' is loaded already"),
        ("qwen", "two", "'qwen' is loaded already"),
        ("", "two", "lora_name is"),
    ],
)
def test_adapters_that_cannot_be_used(
    models: Models, server: Listening, name: str, directory: str, message: str
) -> None:
    status, made = load(server, name, models.directory.parent / directory)
    assert status == 400
    assert message in made["error"]["message"]  # type: ignore[index]


class Placed:
    """An engine that notes what lies where, and who has entered."""

    def __init__(self) -> None:
        self.places: dict[int, str] = {}
        self.entered: dict[str, int] = {}
        self.reads: list[str] = []
        self.refused: dict[str, Exception] = {}

    def read(self, path: Path) -> dict[str, np.ndarray]:
        self.reads.append(path.name)
        if path.name == "gone":
            raise RequestError("the files have gone")
        return {path.name: np.zeros(1)}

    def put_adapter(self, place: int, values: Mapping[str, np.ndarray]) -> None:
        (self.places[place],) = values

    def between_steps(self, action: Any) -> "Future[None]":
        done: Future[None] = Future()
        action()
        done.set_result(None)
        return done

    def enter(self, request: Request) -> None:
        assert request.adapter is not None
        assert self.places[request.adapter.place] == request.adapter.name
        self.entered[request.id] = request.adapter.place


def test_places_go_to_who_needs_them() -> None:
    """Two places and memory for three: who is in use stays, and others wait."""
    engine = Placed()
    host = AdapterHost(engine, engine, engine, places=2, in_memory=3)  # type: ignore[arg-type]
    names = {name: number for number, name in enumerate(["a", "b", "c", "d", "gone"], 1)}

    def admit(request_id: str, name: str) -> None:
        adapter = Adapter(name, Path(name), names[name])
        request = Request(request_id, [1], 1, adapter=adapter)
        host.admit(request, engine.enter, partial(engine.refused.__setitem__, request_id))
        host.check(Path("a")).result()  # what was asked before is done

    for request_id, name in (("1", "a"), ("2", "b"), ("3", "a"), ("4", "c"), ("5", "b")):
        admit(request_id, name)
    assert sorted(engine.entered) == ["1", "2", "3", "5"]  # the fourth waits, nobody behind it does
    host.leave("1")
    host.check(Path("a")).result()
    assert "4" not in engine.entered  # the third still has the place
    host.leave("3")
    host.check(Path("a")).result()
    assert engine.entered["4"] == engine.entered["1"]
    host.leave("2")
    host.leave("5")
    admit("6", "gone")
    assert str(engine.refused["6"]) == "the files have gone"
    reads = engine.reads.count("a")
    admit("7", "a")
    assert engine.reads.count("a") == reads + 1  # that of `admit`: it was in memory
    admit("8", "d")  # waits
    host.leave("8")
    host.leave("7")
    host.check(Path("a")).result()
    assert "8" not in engine.entered
    host.close()


def test_modules_of_the_command_line() -> None:
    assert EngineConfig(lora_modules="a=x, b=y/z").adapters() == {"a": Path("x"), "b": Path("y/z")}
    with pytest.raises(ServingError, match="write name=path"):
        EngineConfig(lora_modules="a").adapters()
