"""The page at / in a real browser: no errors, and it shows the model and its batch."""

import html
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from launch.serving.http import app
from tests.serving.http_server import NAME, Running

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)


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
    assert f'<b id="name">{NAME}</b>' in text
    assert re.search(r'id="running">0 of 4<', text)
    assert re.search(r'id="blocks">0 of 64<', text)


@NEEDS_BROWSER
def test_a_message_is_answered(
    server: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody types and presses the button, one second after the page is there."""
    assets = tmp_path / "assets"
    shutil.copytree(app._ASSETS, assets)
    press = "at('temperature').value = 0; at('prompt').value = 'Hi'; at('send').click();"
    with (assets / "page.js").open("a") as script:
        script.write(f"setTimeout(() => {{ {press} }}, 1000);")
    monkeypatch.setattr(app, "_ASSETS", assets)
    text = rendered(server, tmp_path, 1280)
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 64, "temperature": 0}
    _, answer = server.ask("/v1/chat/completions", body)
    # The browser writes control characters, of which a random model makes many, in its own way.
    printable = re.match(r"[ -~]+", answer["choices"][0]["message"]["content"])
    assert printable
    expected = html.escape(printable.group(), quote=False)
    assert '<div class="message user">Hi</div>' in text
    assert f'<div class="message assistant">{expected}' in text


def test_the_page_needs_nothing_from_elsewhere(server: Running) -> None:
    for path in ("/", "/page.js"):
        status, text = server.ask(path)
        assert status == 200
        assert not re.search(r"https?://", text)
