"""The two processes of a server, from the outside: what signals do, and what the death of either
one does to the other and to its clients."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.conftest import PROJECT
from tests.launch.checkpoint_files import write_directory
from tests.serving.http_server import Listening
from tests.serving.test_http import COMPLETIONS

TOKENS = 2000  # of an answer that is still under way when something happens
LONG = {"prompt": [1], "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}


class Started:
    """`python -m launch.serve`, listening."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process
        assert process.stderr is not None
        self.lines: list[str] = []
        for line in process.stderr:
            self.lines.append(line)
            if match := re.search(r"at (http://\S+)/v1", line):
                self.url = match.group(1)
                break
        else:
            pytest.fail("".join(self.lines))
        self._reader = threading.Thread(target=self.lines.extend, args=(process.stderr,))
        self._reader.start()
        own = f"/proc/{process.pid}/task/{process.pid}/children"
        (self.clients_pid,) = map(int, Path(own).read_text().split())

    def begin(self, *, stream: bool) -> socket.socket:
        """A connection on which a long answer has begun."""
        host, port = self.url.removeprefix("http://").split(":")
        connection = socket.create_connection((host, int(port)), timeout=60)
        data = json.dumps({**LONG, "stream": stream}).encode()
        head = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        head += "Content-Type: application/json\r\n"
        connection.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
        return connection

    def wait_until_running(self, count: int) -> None:
        """Until so many sequences are in the batch."""
        asking = Listening(self.url, None)  # type: ignore[arg-type]
        end = time.monotonic() + 60
        while asking.ask("/load")[1]["running"] < count:
            assert time.monotonic() < end
            time.sleep(0.01)

    def ended(self) -> str:
        """What was said until both processes had closed their end."""
        self._reader.join(60)
        assert not self._reader.is_alive()
        return "".join(self.lines)


@contextmanager
def started(directory: Path) -> Iterator[Started]:
    with subprocess.Popen(
        [
            *(sys.executable, "-m", "launch.serve", f"--model={directory}", "--port=0"),
            *("--max_num_seqs=4", "--num_seqs_buckets=4", "--prefill_rows_buckets=1"),
            *("--prefill_buckets=16", "--max_num_batched_tokens=16", "--warm_up=all"),
            "--compilation_cache_dir=",
        ],
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield Started(process)
        finally:
            process.kill()


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    return write_directory(folder, dtype="float32", max_position_embeddings=4 * TOKENS)


def rest(connection: socket.socket) -> bytes:
    """Everything until the other end closes."""
    with connection:
        data = b""
        while piece := connection.recv(1 << 16):
            data += piece
        return data


@pytest.mark.slow
def test_the_end_of_the_process_with_the_device(directory: Path) -> None:
    """Killed in the middle of a step: no client is left without an answer, and no process stays."""
    with started(directory) as server:
        stream, whole = server.begin(stream=True), server.begin(stream=False)
        server.wait_until_running(2)
        maps = Path(f"/proc/{server.clients_pid}/maps").read_text()
        assert "uvloop" in maps
        assert "jaxlib" not in maps
        os.kill(server.process.pid, signal.SIGKILL)
        head, _, body = rest(whole).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 503 ")
        error = json.loads(body)["error"]
        assert (error["type"], error["code"]) == ("server_error", "engine_stopped")
        assert b'"code":"engine_stopped"' in rest(stream)
        assert "error: the process with the device has ended" in server.ended()


@pytest.mark.slow
def test_the_end_of_the_process_with_the_clients(directory: Path) -> None:
    with started(directory) as server:
        os.kill(server.clients_pid, signal.SIGKILL)
        assert server.process.wait(60) == 1
        assert "the process with the clients was ended by SIGKILL" in server.ended()


@pytest.mark.slow
def test_sigterm(directory: Path) -> None:
    """Answers under way are completed, new requests refused."""
    with started(directory) as server:
        asking = Listening(server.url, None)  # type: ignore[arg-type]
        body = {"prompt": [1], "max_tokens": TOKENS // 2, "ignore_eos": True}
        answers = []
        thread = threading.Thread(target=lambda: answers.append(asking.ask(COMPLETIONS, body)))
        thread.start()
        server.wait_until_running(1)
        server.process.send_signal(signal.SIGTERM)
        end = time.monotonic() + 60
        while asking.ask("/health")[0] == 200:
            assert time.monotonic() < end
        status, refused = asking.ask(COMPLETIONS, body)
        assert (status, refused["error"]["code"]) == (503, "overloaded")
        thread.join(60)
        assert answers[0][1]["usage"]["completion_tokens"] == TOKENS // 2
        assert server.process.wait(60) == 0
        assert "SIGTERM: completing the answers under way" in server.ended()


@pytest.mark.slow
def test_a_second_signal(directory: Path) -> None:
    """It ends what the first one lets finish."""
    with started(directory) as server:
        stream = server.begin(stream=True)
        server.wait_until_running(1)
        server.process.send_signal(signal.SIGINT)
        asking = Listening(server.url, None)  # type: ignore[arg-type]
        end = time.monotonic() + 60
        while asking.ask("/health")[0] == 200:
            assert time.monotonic() < end
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(60) == 0
        assert rest(stream).count(b"data: ") < TOKENS


def test_help_whose_reader_has_gone_ends_without_a_traceback() -> None:
    command = (sys.executable, "-m", "launch.serve", "--help")
    with subprocess.Popen(
        command, cwd=PROJECT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 1
