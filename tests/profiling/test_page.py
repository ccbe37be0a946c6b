"""The pages in a real browser: no errors, and what people look for is there."""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from neuronjax.profiling import page, store, text
from neuronjax.profiling.records import Profile, ProgramProfile, Run
from tests.browser import BROWSER, needs_browser
from tests.profiling import recorded
from tests.profiling.test_findings import kernel, program

NEEDS_BROWSER = needs_browser("the report page")


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
    html = page.report(recorded.profile())
    addresses = set(re.findall(r"https?://[^\s\"'<>)\\]+", html)) - {"http://www.w3.org/2000/svg"}
    assert addresses == set()
    assert "@@" not in html


def test_data_cannot_end_its_element() -> None:
    html = page._page("</title>", {"kind": "profile", "name": "</script><b>"})
    assert "</script><b>" not in html
    assert "&lt;/title&gt;" in html


@NEEDS_BROWSER
def test_report_is_rendered(tmp_path: Path) -> None:
    found = rendered(page.report(recorded.profile()), tmp_path)
    for section in (
        "tiles", "findings", "timeline", "engines", "roofline", "memory", "kernels", "lines",
        "layers", "opcodes", "session", "maps", "tensors", "mesh",
    ):  # fmt: skip
        assert f'id="{section}"' in found
    assert "<canvas" in found
    assert found.count("<svg") >= 4
    assert "Costliest kernel: " in found
    assert "nc_matmul" in found
    assert "recorded.py:" in found
    assert re.search(r"[\d.]+ to [\d.]+ .s in 80 %; \d+ runs? on", found)
    assert " public points" in found
    assert "NaN" not in found
    assert "undefined" not in found


@NEEDS_BROWSER
def test_a_kernel_can_be_linked_to(tmp_path: Path) -> None:
    name = recorded.profile().programs[0].kernels[0].name
    rendered(page.report(recorded.profile()), tmp_path, f"#kernel={name}")


HELPERS = """
const box = () => document.getElementById("search");
const press = (on, key) => on.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
const keys = (...names) => names.forEach((name) => press(document.body, name));
const type = (words) => { box().value = words; box().dispatchEvent(new Event("input")); };
const drag = (from, to) => ["pointerdown", "pointermove", "pointerup"].forEach((name, at) => {
  const { left, top } = current.canvas.getBoundingClientRect();
  const clientX = left + current.x(at ? to : from), clientY = top + 40;
  current.canvas.dispatchEvent(new PointerEvent(name, { shiftKey: true, clientX, clientY }));
});
const sums = () => current.sums(current.range);
const wide = () => (current.end - current.begin) / current.program.total;
const wait = () => { current.select(current.items.find((item) => item.after >= 0)); };
const same = (a, b) => Math.abs(a - b) < 1e-6 * Math.abs(b);
const says = (words) => document.getElementById("selection").textContent.includes(words);
const first = () => current.program.kernels[0];
const part = () => sum(sums().rows.filter((row) => row.kernel === first()), (row) => row.time);
const work = () => sum(current.program.kernels, (kernel) => kernel.flops * kernel.runs);
let before;
"""

ACTIONS = {
    "zoom in": ('keys("w")', "wide() < 1"),
    "zoom out": ('keys("w", "s", "s")', "wide() > 1"),
    "move right": ('keys("w", "w"); before = current.begin; keys("d")', "current.begin > before"),
    "move left": ('keys("w", "w"); before = current.begin; keys("a")', "current.begin < before"),
    "whole run": ('keys("w", "f")', "wide() === 1"),
    "focus": ('wait(); keys("f")', "wide() < 0.5"),
    "mark": ('wait(); keys("m")', 'says("selected")'),
    "clear": ('wait(); keys("Escape")', 'says("Click to select")'),
    "to the search": ('keys("/")', "document.activeElement === box()"),
    "typing is no zoom": ('press(box(), "w")', "wide() === 1"),
    "wait": (
        "wait()",
        "says(`waited for ${current.causes()[1].name}`)"
        "&& current.causes()[1].end <= current.selected.start",
    ),
    "search": (
        "type(first().name.toUpperCase())",
        'says("found")&& current.items.every((item) => item.matching || item.kernel !== first())',
    ),
    "next": (
        'type(first().name); press(box(), "Enter")',
        "current.selected.kernel === first() && wide() < 1",
    ),
    "search for nothing": ('type("no such thing")', 'says("Nothing found")'),
    "sums of all": ("drag(0, current.program.total)", "same(sums().flops, work())"),
    "sums of half a kernel": (
        "drag(first().start + first().span / 2, first().start)",
        "same(part(), first().span / 2)",
    ),
    "unfold": (
        "before = current.lanes.length; current.fold()",
        "current.queues > 1 && current.lanes.length === before + current.queues - 1",
    ),
}
"""What people do with the timeline, and what is true afterwards."""


@NEEDS_BROWSER
def test_what_people_do(tmp_path: Path) -> None:
    steps = "".join(
        f'document.querySelector("#programs button").click(); {action};'
        f"if ({true}) done.push({json.dumps(name)});\n"
        for name, (action, true) in ACTIONS.items()
    )
    script = (
        f"<script>{HELPERS} const done = []; {steps} document.body.dataset.done = done;"
        "</script></body>"
    )
    page_then = rendered(page.report(recorded.profile()).replace("</body>", script), tmp_path)
    done = re.search(r'data-done="(.*?)"', page_then)
    assert done is not None
    assert done[1].split(",") == list(ACTIONS)


@NEEDS_BROWSER
def test_comparison_is_rendered(tmp_path: Path) -> None:
    profile = recorded.profile()
    found = rendered(page.comparison(profile, profile), tmp_path)
    assert "No program, metric or line differs by 1 % or more." in found
    faster = tuple(replace(each, total_ns=each.total_ns / 2) for each in profile.programs)
    found = rendered(page.comparison(profile, replace(profile, programs=faster)), tmp_path)
    assert 'id="metrics-jit_step"' in found
    assert "-50 %" in found


@NEEDS_BROWSER
def test_the_mesh_lies_on_the_machine(tmp_path: Path) -> None:
    """Four ranks, the first cores of two chips each of a row: a ring of two chips."""
    profile = recorded.profile()
    machine = replace(profile.machine, target="trn1.32xlarge", lnc=1)
    program = profile.programs[0]
    runs = tuple(run._replace(cores=(0, 1, 2, 3)) for run in profile.runs if run.program == 0)
    profile = replace(profile, machine=machine, programs=(program,), runs=runs, counts=(len(runs),))
    found = rendered(page.report(profile), tmp_path)
    assert "The mesh data=4 on the machine" in found
    assert "between chips 0 and 1" in found
    assert "core 3: data 3" in found


NOTHING = kernel(path="p/nothing", added_ns=0.0)
ODD = {
    "no kernels": program(),
    "no time": program(total_ns=0.0, busy_ns={}),
    "one kernel of 0 ns": program(NOTHING, total_ns=3_000.0),
    "kernels of 0 ns": program(NOTHING, kernel(), replace(NOTHING, path="p/twice", runs=3)),
    "on many cores": program(ranks=4, cores=(0, 1, 2, 3), mesh=(("data", 4),)),
    "not timed": ProgramProfile(name="p", fingerprint="", ranks=1, error="no such thing"),
}


@NEEDS_BROWSER
def test_odd_programs_are_rendered_and_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Each with the sections that the page has for it, and in every file."""
    programs = tuple(replace(each, name=name) for name, each in ODD.items())
    runs = tuple(Run(number, (0,), 0.0, 0, 0) for number in range(len(programs)))
    machine = recorded.profile().machine
    odd = Profile(machine=machine, programs=programs, runs=runs, counts=(1,) * len(runs), host_ns=0)
    every = "<script>for (const each of data.programs) page.append(...renderProgram(each))</script>"
    shown = rendered(page.report(odd).replace("</body>", f"{every}</body>"), tmp_path)
    assert "NaN" not in shown
    assert "undefined" not in shown
    assert "Infinity" not in shown
    assert shown.count('id="timeline"') >= len(ODD) - 1
    store.write(odd, tmp_path / "out")
    assert "defect" not in caplog.text
    assert store.read(tmp_path / "out") == odd
    assert text.text(odd)


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
