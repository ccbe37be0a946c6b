"""The pages in a real browser: no errors, and what people look for is there."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from neuronjax.profiling import page
from neuronjax.profiling.records import Profile, ProgramProfile, Run
from tests.profiling import recorded

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)
NEEDS_BROWSER = pytest.mark.skipif(
    not BROWSER, reason="NOT TESTED: the report page, for want of chromium (apt install chromium)"
)


def rendered(text: str, folder: Path, anchor: str = "") -> str:
    """What the browser makes of a page. Fails if its code raises or logs."""
    path = folder / "page.html"
    path.write_text(text)
    done = subprocess.run(
        [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder}/user",
         "--enable-logging=stderr", "--virtual-time-budget=4000", "--dump-dom",
         f"file://{path}{anchor}"],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    assert [row for row in done.stderr.splitlines() if "CONSOLE" in row] == []
    assert 'data-rendered="yes"' in done.stdout
    return re.sub(r"<script.*?</script>", "", done.stdout, flags=re.DOTALL)


def test_page_needs_no_network() -> None:
    text = page.report(recorded.profile())
    addresses = set(re.findall(r"https?://[^\s\"'<>)]+", text)) - {"http://www.w3.org/2000/svg"}
    assert addresses == set()
    assert "@@" not in text


def test_data_cannot_end_its_element() -> None:
    text = page._page("</title>", {"kind": "profile", "name": "</script><b>"})
    assert "</script><b>" not in text
    assert "&lt;/title&gt;" in text


@NEEDS_BROWSER
def test_report_is_rendered(tmp_path: Path) -> None:
    found = rendered(page.report(recorded.profile()), tmp_path)
    for section in (
        "tiles", "findings", "timeline", "engines", "roofline", "memory", "kernels", "lines",
        "layers", "opcodes", "runs",
    ):  # fmt: skip
        assert f'id="{section}"' in found
    assert "<canvas" in found
    assert found.count("<svg") >= 4
    assert "nc_matmul" in found
    assert "recorded.py:" in found
    assert "NaN" not in found
    assert "undefined" not in found


@NEEDS_BROWSER
def test_a_kernel_can_be_linked_to(tmp_path: Path) -> None:
    name = recorded.profile().programs[0].kernels[0].name
    rendered(page.report(recorded.profile()), tmp_path, f"#kernel={name}")


@NEEDS_BROWSER
def test_comparison_is_rendered(tmp_path: Path) -> None:
    profile = recorded.profile()
    found = rendered(page.comparison(profile, profile), tmp_path)
    assert "mfu_estimated_percent" in found
    assert 'id="lines"' in found


@NEEDS_BROWSER
@pytest.mark.parametrize(
    "programs", [(), (ProgramProfile(name="p", fingerprint="", ranks=1, error="no such thing"),)]
)
def test_pages_without_times(tmp_path: Path, programs: tuple[ProgramProfile, ...]) -> None:
    counts = (1,) * len(programs)
    runs = tuple(Run(0, (0,), 0.0, 0, 0) for _ in programs)
    machine = recorded.profile().machine
    profile = Profile(machine=machine, programs=programs, runs=runs, counts=counts, host_ns=1)
    found = rendered(page.report(profile), tmp_path)
    assert ("no such thing" if programs else "No program ran") in found
