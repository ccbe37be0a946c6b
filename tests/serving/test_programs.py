"""launch.serve and launch.batch as programs of their own, on a Hugging Face directory."""

import json
import queue
import re
import signal
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest
from openai import InternalServerError, OpenAI

from launch.errors import LaunchError
from launch.serving.batch import answered, read_lines
from launch.serving.config import EngineConfig, ModelNames
from launch.serving.errors import ServingError
from launch.serving.kinds import answer_file
from launch.serving.model_choice import ModelChoice
from launch.serving.server import load
from tests.launch.checkpoint_files import write_directory
from tests.launch.programs import run, start

SMALL = (
    "--max_num_seqs=4",
    "--num_seqs_buckets=4",
    "--prefill_buckets=64",
    "--prefill_rows_buckets=1",
    "--max_num_batched_tokens=64",
    "--compilation_cache_dir=",
)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_directory(tmp_path_factory.mktemp("models") / "qwen")


def test_serve_until_sigterm(directory: Path) -> None:
    """From the command line to the exit code: an answer that is under way is completed."""
    process = start("serve", f"--model={directory}", "--port=0", *SMALL, devices=1)
    try:
        url, said = _url(process)
        with OpenAI(base_url=url, api_key="any", max_retries=0) as client:
            asked: dict[str, Any] = {"model": "qwen", "prompt": "the statement", "temperature": 0}
            text = client.completions.create(**asked, max_tokens=9).choices[0].text
            streams = [
                client.completions.create(
                    **asked, max_tokens=60, n=64, stream=True, extra_body={"ignore_eos": True}
                )
                for _ in range(2)
            ]
            first = [next(stream) for stream in streams]
            process.send_signal(signal.SIGTERM)
            assert "SIGTERM: completing" in said.get(timeout=30)
            with pytest.raises(InternalServerError, match="shutting down") as refused:
                client.completions.create(**asked)
            assert refused.value.status_code == 503
            for stream, piece in zip(streams, first, strict=True):
                pieces = [piece, *stream]
                own = "".join(p.choices[0].text for p in pieces if p.choices[0].index == 0)
                assert own.startswith(text)
                ends = [p.choices[0].finish_reason for p in pieces]
                assert ends.count("length") == 64
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.communicate()


def _url(process: "subprocess.Popen[str]") -> tuple[str, "queue.Queue[str]"]:
    """Where the server listens, and what it says of its end."""
    assert process.stderr is not None
    stream, said = process.stderr, queue.Queue[str]()

    def read() -> None:  # what nobody reads would fill the pipe
        for line in stream:
            if line.startswith("SIG"):
                said.put(line)

    for line in stream:
        if match := re.search(r"at (http://\S+/v1)", line):
            threading.Thread(target=read, daemon=True).start()
            return match.group(1), said
    raise AssertionError("the server has not started")


def test_a_checkpoint_that_is_not_there_is_one_message() -> None:
    done = run("serve", "--checkpoint_dir=nowhere", devices=1)
    assert done.returncode == 1
    assert "no checkpoint in --checkpoint_dir=nowhere" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("mesh", "changes", "message"),
    [
        (
            "model=1",
            {"max_model_len": 4096},
            "this model's texts have 2 to 64 tokens",
        ),
        ("fsdp=2", {}, "splits fsdp"),
        ("data=2", {"enable_lora": True}, "adapters need --mesh=data=1"),
        ("data=3", {"disaggregated_prefill": True}, "needs two copies of the model, not 3"),
        ("model=3", {"decode_context_parallel_size": 2}, "must divide the cores that share"),
        ("model=99", {}, "needs 99 devices"),
        ("model=1", {"prefill_buckets": "9,3"}, "--prefill_buckets=9,3: .* ascending order"),
        ("model=1", {"num_seqs_buckets": "a"}, "write whole numbers"),
        ("model=1", {"num_blocks": 1 << 40}, "MiB are free beside the weights"),
    ],
)
def test_what_cannot_be_served(
    directory: Path, mesh: str, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(LaunchError, match=message):
        load(Path("unused"), directory, mesh, EngineConfig(**changes))


def _request(index: int, **body: Any) -> dict[str, Any]:
    chat = index % 2
    prompt = {"messages": [{"role": "user", "content": f"{index}"}]} if chat else {"prompt": "a b"}
    url = "/v1/chat/completions" if chat else "/v1/completions"
    body = {"model": "qwen", "max_tokens": 3, "temperature": 0, **prompt, **body}
    return {"custom_id": f"r{index}", "method": "POST", "url": url, "body": body}


def _answer(name: str, status: int) -> str:
    return json.dumps({"custom_id": name, "response": {"status_code": status, "body": {}}}) + "\n"


def test_a_batch_goes_on_where_it_was_cut_off(directory: Path, tmp_path: Path) -> None:
    requests = [_request(index) for index in range(6)]
    requests[3]["body"]["temperature"] = -1
    requests[4]["url"] = "/v1/nothing"
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("".join(json.dumps(request) + "\n" for request in requests))
    kept = _answer("r0", 200)
    output.write_text(_answer("r5", 503) + kept + '{"custom_id": "r1", "respo')
    done = run(
        "batch",
        *(f"--model={directory}", f"--requests={source}", f"--output={output}"),
        *("--concurrency=3", *SMALL),
        devices=1,
    )
    assert done.returncode == 0, done.stderr
    assert "5 of 6 requests have no answer" in done.stderr
    text = output.read_text()
    assert text.startswith(kept)
    answers = {line["custom_id"]: line for line in map(json.loads, text.splitlines())}
    assert set(answers) == {f"r{index}" for index in range(6)}
    statuses = {name: answers[name]["response"]["status_code"] for name in answers if name != "r0"}
    assert statuses == {"r1": 200, "r2": 200, "r3": 400, "r4": 400, "r5": 200}
    assert answers["r3"]["response"]["body"]["error"]["param"] == "temperature"
    assert answers["r2"]["response"]["body"]["usage"]["completion_tokens"] >= 1
    assert answers["r1"]["response"]["body"]["object"] == "chat.completion"
    assert len({answers[name]["id"] for name in statuses}) == len(statuses)


def test_a_batch_with_all_its_answers_opens_no_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text(json.dumps(_request(0)) + "\n")
    output.write_text(_answer("r0", 400))
    none = tmp_path / "none"
    choice = ModelChoice(none, none, "model=1", EngineConfig(), ModelNames())
    assert answer_file(choice, source, output, concurrency=1) == 0
    assert "an answer to each of the 1 requests" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "in.jsonl:1 is not JSON"),
        ("[]", "in.jsonl:1 is not a JSON object"),
        ('{"custom_id": "a", "url": "/v1/completions"}', "in.jsonl:1 has no body"),
        ('{"custom_id": "a", "url": "x", "body": {}}\n' * 2, "in.jsonl:2: the custom_id 'a'"),
    ],
)
def test_a_file_that_holds_no_requests(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "in.jsonl"
    file.write_text(text)
    with pytest.raises(ServingError, match=message):
        read_lines(file)
    file.write_text("no json\n")
    with pytest.raises(ServingError, match="not an output of this program"):
        answered(file)
