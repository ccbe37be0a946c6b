"""One address for several servers: which of them a request goes to, and what clients see when one
of them ends."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launch.serving.router.placement import Placement, measure_work
from tests.launch.checkpoint_files import write_directory
from tests.serving.http_server import Listening

COMPLETIONS = "/v1/completions"


def test_a_beginning_goes_where_it_is_known() -> None:
    placement = Placement(3)
    texts = ["a" * 4000, "b" * 4000, "c" * 4000]
    works = [measure_work({"prompt": text, "max_tokens": 1}) for text in texts]
    first = []
    for work in works:  # all at the same time
        number = placement.order(work, [0, 1, 2])[0]
        placement.begin(work, number)
        first.append(number)
    assert sorted(first) == [0, 1, 2]
    longer = [measure_work({"prompt": text + " and on", "max_tokens": 1}) for text in texts]
    assert [placement.order(work, [0, 1, 2])[0] for work in longer] == first
    others = [number for number in (0, 1, 2) if number != first[0]]
    assert placement.order(longer[0], others)[0] in others
    placement.forget_cache(first[0])
    assert placement.order(longer[0], [0, 1, 2])[0] == first[0]  # all are as busy


def test_an_unbounded_load_goes_elsewhere() -> None:
    """However much of its prompts a server knows, it does not get all of the work."""
    placement, work = Placement(2), measure_work({"prompt": "a" * 4000, "max_tokens": 200})
    numbers = []
    for _ in range(12):
        numbers.append(placement.order(work, [0, 1])[0])
        placement.begin(work, numbers[-1])
    assert min(numbers.count(0), numbers.count(1)) >= 4


_BODIES = st.dictionaries(
    st.sampled_from(["prompt", "messages", "max_tokens", "n", "input", "system"]),
    st.one_of(st.none(), st.integers(), st.text(), st.lists(st.text()), st.floats()),
)


@given(st.lists(st.tuples(_BODIES, st.integers(0, 2))))
def test_what_is_over_is_no_load(given_: list[tuple[dict[str, Any], int]]) -> None:
    placement = Placement(3)
    tickets = [placement.begin(measure_work(body), number) for body, number in given_]
    assert all(placement.tokens_left(number) >= 0 for number in range(3))
    for ticket in tickets:
        placement.end(ticket)
    assert [placement.tokens_left(number) for number in range(3)] == [0, 0, 0]


class Fake(ThreadingHTTPServer):
    """A server whose behaviour tests choose."""

    daemon_threads = True

    def __init__(self, version: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.version, self.manner = version, "answers"
        self.seen: list[tuple[str, dict[str, str], Any]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Fake

    def do_GET(self) -> None:
        texts: dict[str, tuple[int, Any]] = {
            "/health": (503 if self.server.manner == "ill" else 200, ""),
            "/version": (200, {"version": self.server.version}),
            "/metrics": (200, '# HELP a A.\n# TYPE a gauge\na{of="x"} 2.0\n'),
            "/load": (200, {"running": 2, "model": "fake"}),
        }
        status, body = texts.get(self.path, (200, {"path": self.path}))
        if self.server.manner == "ends" and self.path in ("/metrics", "/load"):
            status, body = 503, {"error": {"message": "shutting down"}}
        self._say(status, body)

    def do_POST(self) -> None:
        data = self.rfile.read(int(self.headers["content-length"]))
        headers = {name.lower(): text for name, text in self.headers.items()}
        with suppress(RecursionError):  # a body that no server can read
            self.server.seen.append((self.path, headers, json.loads(data)))
        _MANNERS[self.server.manner](self)

    def _say(self, status: int, body: Any) -> None:
        data = (body if isinstance(body, str) else json.dumps(body)).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("X-Request-Id", self.headers.get("x-request-id", ""))
        self.end_headers()
        self.wfile.write(data)

    def _die(self, head: bytes = b"") -> None:
        self.wfile.write(head)
        self.wfile.flush()
        self.close_connection = True

    def log_message(self, *_: object) -> None: ...

    EVENTS: ClassVar = (
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"9\r\ndata: 1\n\n\r\n"
    )


_MANNERS: dict[str, Any] = {
    "answers": lambda handler: handler._say(200, {"by": handler.server.url}),
    "refuses": lambda handler: handler._say(400, {"error": {"message": "no"}}),
    "ends": lambda handler: handler._say(503, {}),
    "is busy": lambda handler: handler._say(503, {"error": {"message": "busy"}}),
    "dies": lambda handler: handler._die(),
    "dies in its head": lambda handler: handler._die(b"HTTP/1.1 200 O"),
    "dies in its body": lambda handler: handler._die(
        b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{"a'
    ),
    "dies in a stream": lambda handler: handler._die(_Handler.EVENTS),
}


@contextmanager
def routed(*servers: Fake) -> Iterator[Listening]:
    """`python -m launch.route` in front of servers."""
    with ExitStack() as stack:
        for server in servers:
            stack.enter_context(server)
            threading.Thread(target=server.serve_forever, daemon=True).start()
            stack.callback(server.shutdown)
        urls = ",".join(server.url for server in servers)
        command = [sys.executable, "-m", "launch.route", f"--servers={urls}", "--port=0"]
        process = stack.enter_context(subprocess.Popen(command, stderr=subprocess.PIPE, text=True))
        stack.callback(process.kill)
        assert process.stderr is not None
        said = ""
        for line in process.stderr:
            said += line
            if match := re.search(r"at (http://\S+)/v1", line):
                break
        else:
            pytest.fail(said)
        threading.Thread(target=process.stderr.read, daemon=True).start()
        listening = Listening(match[1], None)  # type: ignore[arg-type]
        wait_for(lambda: listening.ask("/metrics")[1].count('_up{replica="') == len(servers))
        yield listening


def wait_for(condition: Any, seconds: float = 60) -> None:
    """Waits until a condition holds, and fails after so many seconds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def ups(server: Listening) -> int:
    """How many servers take requests."""
    return len(re.findall(r'replica_up{replica="\d"} 1', server.ask("/metrics")[1]))


def test_requests_behind_one_address() -> None:
    """One process for all of it, as each start takes a second."""
    fakes = [Fake(version("neuronjax")) for _ in range(2)]
    ask = {"prompt": "a" * 1000, "max_tokens": 4}
    with routed(*fakes) as server:
        wait_for(lambda: ups(server) == 2)
        first, second = fakes
        # What it passes on: the path, the body, who the client is and what it calls the server.
        headers = {"X-Request-Id": "mine", "Authorization": "Bearer k"}
        assert server.ask(f"{COMPLETIONS}?a=b%2Fc", ask, headers=headers) == (
            200,
            {"by": first.url},
        )
        path, seen, body = first.seen[-1]
        assert (path, body) == (f"{COMPLETIONS}?a=b%2Fc", ask)
        assert seen["x-request-id"] == "mine"
        assert seen["authorization"] == "Bearer k"
        assert seen["x-forwarded-for"] == "127.0.0.1"
        assert seen["host"] == server.url.removeprefix("http://")
        # A refusal is the answer.
        first.manner = second.manner = "refuses"
        assert server.ask(COMPLETIONS, ask)[0] == 400
        # A server that does not begin to answer: another one is asked.
        second.manner = "answers"
        for manner in ("is busy", "dies", "dies in its head", "dies in its body"):
            wait_for(lambda: ups(server) == 2)
            first.manner = manner
            assert server.ask(COMPLETIONS, ask) == (200, {"by": second.url})
        first.manner = second.manner = "is busy"
        wait_for(lambda: ups(server) == 2)
        assert server.ask(COMPLETIONS, ask) == (503, {"error": {"message": "busy"}})
        # One that ends in the middle of a stream: what has come stays, and the end says so.
        first.manner = second.manner = "dies in a stream"
        status, text = server.ask(COMPLETIONS, ask)
        assert status == 200
        *events, last = text.strip().split("\n\n")
        assert events in (["data: 1"], [])  # what comes together with the end may be lost
        assert "ended in the middle" in json.loads(last.removeprefix("data: "))["error"]["message"]
        wait_for(lambda: ups(server) == 2)
        # What one server keeps is asked of one, and adapters are loaded into all.
        first.manner = second.manner = "answers"
        for fake in fakes:
            fake.seen.clear()
        for _ in range(2):
            assert server.ask("/v1/batches", {"input_file_id": "f"}) == (200, {"by": first.url})
        assert server.ask("/v1/files")[1] == {"path": "/v1/files"}
        assert server.ask("/v1/load_lora_adapter", {"lora_name": "x", "lora_path": "y"})[0] == 200
        assert [len(fake.seen) for fake in fakes] == [3, 1]
        # One that begins anew gets the adapters again.
        second.manner = "ill"
        wait_for(lambda: ups(server) == 1)
        second.seen.clear()
        second.manner = "answers"
        wait_for(lambda: [path for path, *_ in second.seen] == ["/v1/load_lora_adapter"])
        # Numbers of all.
        assert server.ask("/load")[1]["running"] == 4
        metrics = server.ask("/metrics")[1]
        assert 'a{of="x",replica="0"} 2.0' in metrics
        assert 'a{of="x",replica="1"} 2.0' in metrics
        assert re.search(r"requests_retried_total [1-9]", metrics)
        first.manner = "ends"  # it is well for a little longer, but has no numbers any more
        wait_for(lambda: ups(server) == 2)
        assert server.ask("/load")[1]["running"] == 2
        status, metrics = server.ask("/metrics")
        assert status == 200
        assert re.findall(r"^a\{.*", metrics, re.M) == ['a{of="x",replica="1"} 2.0']
        # Limits and errors of its own.
        assert server.ask(COMPLETIONS, ask, headers={"Host": "elsewhere.example"})[0] == 403
        assert server.ask(COMPLETIONS, data=b"[" * 100_000)[0] == 200  # for a server to refuse
        first.manner = second.manner = "ill"
        wait_for(lambda: ups(server) == 0)
        status, told = server.ask(COMPLETIONS, ask)
        assert (status, told["error"]["code"]) == (503, "overloaded")
        assert server.ask("/health")[0] == 503


def test_a_server_of_another_version_gets_no_requests() -> None:
    fakes = [Fake("0.0.1"), Fake(version("neuronjax"))]
    with routed(*fakes) as server:
        wait_for(lambda: ups(server) == 1)
        assert server.ask(COMPLETIONS, {"prompt": "a"}) == (200, {"by": fakes[1].url})


@pytest.mark.parametrize(
    ("servers", "said"),
    [("", "--servers is missing"), ("http://a:1/v1", "no address"), ("a:8000", "no address")],
)
def test_addresses_that_are_none(servers: str, said: str) -> None:
    command = [sys.executable, "-m", "launch.route", f"--servers={servers}"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ended.returncode, said in ended.stderr) == (1, True)


def children(pid: int) -> list[int]:
    """The processes that one has started."""
    return [
        int(child)
        for task in Path(f"/proc/{pid}/task").iterdir()
        for child in (task / "children").read_text().split()
    ]


def is_alive(pid: int) -> bool:
    """Whether a process runs."""
    with suppress(ProcessLookupError, FileNotFoundError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


@pytest.mark.slow
def test_replicas_that_are_killed(tmp_path: Path) -> None:
    """Of the process with the device, of that with the clients, and of the router in the end: every
    client gets an answer or an error, the others go on, and no process stays."""
    model = write_directory(tmp_path / "tiny", dtype="float32", max_position_embeddings=1024)
    command = [
        *(sys.executable, "-m", "launch.serve", f"--model={model}", "--port=0", "--replicas=2"),
        *("--max_num_seqs=4", "--num_seqs_buckets=4", "--prefill_rows_buckets=1"),
        *("--prefill_buckets=16", "--max_num_batched_tokens=16", "--warm_up=all"),
        f"--compilation_cache_dir={tmp_path / 'programs'}",
    ]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            lines = iter(process.stderr)
            found = next(filter(None, (re.search(r"at (http://\S+)/v1", line) for line in lines)))
            threading.Thread(target=lambda: [*lines], daemon=True).start()
            server = Listening(found[1], None)  # type: ignore[arg-type]
            wait_for(lambda: ups(server) == 2, 120)
            body = {"prompt": [1], "max_tokens": 400, "temperature": 0, "ignore_eos": True}
            expected = server.ask(COMPLETIONS, body)[1]["choices"][0]["text"]
            for of_device in (True, False):
                victim = children(process.pid)[0]
                with ThreadPoolExecutor(6) as pool:
                    answers = [pool.submit(server.ask, COMPLETIONS, body) for _ in range(6)]
                    wait_for(lambda: server.ask("/load")[1]["running"] >= 4)
                    os.kill(victim if of_device else children(victim)[0], signal.SIGKILL)
                texts = [answer.result()[1]["choices"][0]["text"] for answer in answers]
                assert texts == [expected] * 6
                wait_for(lambda victim=victim: not is_alive(victim), 60)
                wait_for(lambda: ups(server) == 2, 120)
            everyone = [pid for child in children(process.pid) for pid in (child, *children(child))]
            assert len(everyone) == 4
            process.kill()
            wait_for(lambda: not any(map(is_alive, everyone)), 60)
        finally:
            process.kill()
