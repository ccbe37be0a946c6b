"""The page at / in a real browser: no errors, and it shows the model and its batch."""

import json
import queue
import re
import shutil
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from launch.serving.http import app
from tests.serving.http_server import NAME, Running

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)


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
    fetch("http://127.0.0.1:PORT/", { method: "POST", mode: "no-cors", body });
  }, 50);
}, 50);
"""
NEEDS_BROWSER = pytest.mark.skipif(
    not BROWSER, reason="NOT TESTED: the chat page, for want of chromium (apt install chromium)"
)


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


class Told(BaseHTTPRequestHandler):
    """Takes what a page posts."""

    texts: ClassVar[queue.Queue[str]] = queue.Queue()

    def do_POST(self) -> None:
        self.texts.put(self.rfile.read(int(self.headers["Content-Length"])).decode())
        self.send_response(204)
        self.end_headers()

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@NEEDS_BROWSER
def test_a_message_is_answered(
    server: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody types and presses the button; the answer streams into the page."""
    listener = HTTPServer(("127.0.0.1", 0), Told)
    threading.Thread(target=listener.serve_forever, daemon=True).start()
    assets = tmp_path / "assets"
    shutil.copytree(app._ASSETS, assets)
    with (assets / "page.js").open("a") as script:
        script.write(PRESS.replace("PORT", str(listener.server_port)))
    monkeypatch.setattr(app, "_ASSETS", assets)
    browser = subprocess.Popen(
        [
            *(BROWSER, "--headless", "--no-sandbox", "--disable-gpu"),
            *(f"--user-data-dir={tmp_path}/user", "--remote-debugging-port=0", f"{server.url}/"),
        ],
        stderr=subprocess.DEVNULL,
    )
    try:
        user, assistant = json.loads(Told.texts.get(timeout=60))
    finally:
        browser.terminate()
        browser.wait(30)
        listener.shutdown()
        listener.server_close()
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 64, "temperature": 0}
    _, answer = server.ask("/v1/chat/completions", body)
    assert (user, assistant) == ("Hi", answer["choices"][0]["message"]["content"])


def test_the_page_needs_nothing_from_elsewhere(server: Running) -> None:
    for path in ("/", "/page.js"):
        status, text = server.ask(path)
        assert status == 200
        assert not re.search(r"https?://", text)
