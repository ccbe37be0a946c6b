"""The page at / in a real browser: no errors, and it shows the model and its batch."""

import json
import queue
import re
import subprocess
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from tests.browser import BROWSER, needs_browser
from tests.serving.http_server import NAME, Running

# Asks once the page knows its model, and tells the messages when the answer is complete.
PRESS = """
const press = setInterval(() => {
  if (!model) return;
  clearInterval(press);
  at("temperature").value = 0;
  at("prompt").value = "Hi";
  at("send").click();
  const wait = setInterval(() => {
    if (asking) return;
    clearInterval(wait);
    const texts = [...document.querySelectorAll(".message")].map((box) => box.textContent);
    const body = JSON.stringify(texts);
    fetch("/told", { method: "POST", body });
  }, 50);
}, 50);
"""
NEEDS_BROWSER = needs_browser("the chat page")


def rendered(server: Running, folder: Path, width: int) -> str:
    """The page after three seconds. Fails if its code raises or logs."""
    done = subprocess.run(
        [
            *(BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr"),
            *(f"--user-data-dir={folder}/user", f"--window-size={width},800"),
            *("--virtual-time-budget=3000", "--dump-dom", f"{server.url}/"),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert [row for row in done.stderr.splitlines() if "CONSOLE" in row] == []
    return done.stdout


@NEEDS_BROWSER
@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_shows_the_model_and_its_batch(
    server: Running, tmp_path: Path, width: int
) -> None:
    text = rendered(server, tmp_path, width)
    assert f'<option value="{NAME}">{NAME}</option>' in text
    assert re.search(r'id="running">0 of 4<', text)
    assert re.search(r'id="blocks">0 of 64<', text)


class Typing(BaseHTTPRequestHandler):
    """The server's page with a script that uses it, and a place where that tells what it saw.
    Whatever else the page asks for comes from the server as it is."""

    url: ClassVar[str]  # of the server
    texts: ClassVar[queue.Queue[str]] = queue.Queue()

    def do_GET(self) -> None:
        more = PRESS.encode() if self.path == "/page.js" else b""
        self.pass_on(urllib.request.Request(f"{self.url}{self.path}"), more)

    def do_POST(self) -> None:
        data = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/told":
            self.texts.put(data.decode())
            self.send_response(204)
            self.end_headers()
        else:
            kind = {"Content-Type": self.headers["Content-Type"]}
            self.pass_on(urllib.request.Request(f"{self.url}{self.path}", data, kind))

    def pass_on(self, request: urllib.request.Request, more: bytes = b"") -> None:
        with urllib.request.urlopen(request, timeout=60) as answer:
            self.send_response(answer.status)
            self.send_header("Content-Type", answer.headers["Content-Type"])
            self.end_headers()
            while piece := answer.read1():
                self.wfile.write(piece)
            self.wfile.write(more)

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@NEEDS_BROWSER
def test_a_message_is_answered(
    server: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody types and presses the button; the answer streams into the page."""
    monkeypatch.setattr(Typing, "url", server.url, raising=False)
    listener = ThreadingHTTPServer(("127.0.0.1", 0), Typing)
    threading.Thread(target=listener.serve_forever, daemon=True).start()
    browser = subprocess.Popen(
        [
            *(BROWSER, "--headless", "--no-sandbox", "--disable-gpu"),
            *(f"--user-data-dir={tmp_path}/user", "--remote-debugging-port=0"),
            f"http://127.0.0.1:{listener.server_port}/",
        ],
        stderr=subprocess.DEVNULL,
    )
    try:
        user, assistant = json.loads(Typing.texts.get(timeout=60))
    finally:
        browser.terminate()
        browser.wait(30)
        listener.shutdown()
        listener.server_close()
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 40, "temperature": 0}
    _, answer = server.ask("/v1/chat/completions", body)
    assert (user, assistant) == ("Hi", answer["choices"][0]["message"]["content"])


def test_the_page_needs_nothing_from_elsewhere(server: Running) -> None:
    for path in ("/", "/page.js"):
        status, text = server.ask(path)
        assert status == 200
        assert not re.search(r"https?://", text)
