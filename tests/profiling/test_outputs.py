"""The files of a recording: what other programs expect of them."""

from __future__ import annotations

import dataclasses
import importlib
import json
from pathlib import Path

import pytest

from neuronjax.display import duration
from neuronjax.errors import shown_line
from neuronjax.profiling import chrome, compare, store, summary, tables, text
from neuronjax.profiling.events import trace
from neuronjax.profiling.findings import findings
from neuronjax.profiling.records import ProgramProfile
from tests.profiling import recorded


def test_summary_has_neuron_explorers_names() -> None:
    found = summary.document(recorded.profile())["jit_step"]
    wanted = {
        "total_time", "model_flops", "hardware_flops", "transpose_flops", "mfu_estimated_percent",
        "hfu_estimated_percent", "mbu_estimated_percent", "mfu_max_achievable_estimated_percent",
        "mm_arithmetic_intensity", "peak_flops_bandwidth_ratio", "hbm_read_bytes",
        "spill_reload_bytes", "dma_transfer_average_bytes", "cc_op_count",
        "tensor_engine_active_time_percent", "neuroncore_cycle_count", "trace_count",
    }  # fmt: skip
    assert wanted <= found.keys()
    assert found["trace_count"] == recorded.RUNS
    assert found["cc_op_count"] >= 1
    machine = recorded.profile().machine
    mfu = found["model_flops"] / (machine.max_flops * found["total_time"])
    assert found["mfu_estimated_percent"] == pytest.approx(mfu)
    shares = [value for name, value in found.items() if name.endswith("_percent")]
    assert all(0 <= share <= 1.000001 for share in shares)


def test_trace_is_well_formed() -> None:
    profile = recorded.profile()
    events = json.loads(json.dumps(chrome.document(trace(profile))))["traceEvents"]
    slices = [each for each in events if each["ph"] == "X"]
    named = {(each["pid"], each["tid"]) for each in events if each.get("name") == "thread_name"}
    assert {(each["pid"], each["tid"]) for each in slices} <= named
    assert all(each["dur"] >= 0 for each in slices)
    reached: dict[tuple[int, int], float] = {}
    for each in sorted(slices, key=lambda one: one["ts"]):  # slices of a row do not overlap
        row = (each["pid"], each["tid"])
        assert each["ts"] >= reached.get(row, 0.0) - 1e-6
        reached[row] = each["ts"] + each["dur"]
    programs = [each for each in slices if each["cat"] == "programs"]
    assert len(programs) == sum(len(run.cores) for run in profile.runs)
    lanes: dict[tuple[int, int], list[dict]] = {}
    for each in slices:
        lanes.setdefault((each["pid"], each["tid"]), []).append(each)
    for each in [each for each in events if each["ph"] in "sf"][:500]:  # within a slice
        row = lanes[each["pid"], each["tid"]]
        assert any(one["ts"] <= each["ts"] <= one["ts"] + one["dur"] for one in row)
    begun = {each["id"] for each in events if each["ph"] == "s"}
    assert begun == {each["id"] for each in events if each["ph"] == "f"}
    assert begun
    counters = {each["name"] for each in events if each["ph"] == "C"}
    assert counters == {"HBM tensors", "HBM scratch", "SBUF per partition", "PSUM per partition"}


def test_tables_are_parquet(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    profile = recorded.profile()
    tables.write(profile, tmp_path)
    written = {path.stem for path in (tmp_path / tables.FOLDER).iterdir()}
    assert written == set(tables.TABLES)
    for name in tables.TABLES:
        found = parquet.read_table(tmp_path / tables.FOLDER / f"{name}.parquet").to_pylist()
        assert found == [dict(row) for row in tables.rows(profile, name)]
    opcodes = tables.rows(profile, "OpcodeSummary")
    assert any(row["opcode"] == "nc_matmul" and row["engine"] == "tensor" for row in opcodes)


def test_tables_without_pyarrow_are_not_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", refuse)
    tables.write(recorded.profile(), tmp_path)
    assert "neuronjax[profile]" in caplog.text
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("operation", "ranks", "factor"),
    [
        ("all_reduce", 4, 1.5),
        ("all_gather", 4, 0.75),
        ("collective_permute", 4, 1.0),
        ("all_reduce", 2, 1.0),
    ],
)
def test_bus_factor_is_nccom_tests(operation: str, ranks: int, factor: float) -> None:
    assert tables.bus_factor(operation, ranks) == factor


def test_text_has_programs_kernels_and_findings() -> None:
    profile = recorded.profile()
    found = text.text(profile)
    assert "jit_step" in found
    assert "recorded.py:" in found
    for each in findings(profile)[:2]:
        assert each.what in " ".join(found.split())
        assert each.cost_ns <= profile.total_ns * 1.01


@pytest.mark.parametrize(
    ("ns", "shown"),
    [(0.5, "0.5 ns"), (999, "999 ns"), (1500, "1.5 µs"), (2.5e6, "2.5 ms"), (3.21e9, "3.21 s")],
)
def test_times_of_text(ns: float, shown: str) -> None:
    assert duration(ns) == shown


def test_long_names_and_lines_of_this_folder_are_short() -> None:
    assert text.shortened("a" * 44) == "a" * 44
    assert text.shortened("ab" * 30) == f"{'ab' * 21}a…"
    assert shown_line(f"{Path.cwd()}/model.py:3") == "model.py:3"
    assert shown_line("/elsewhere/model.py:3") == "/elsewhere/model.py:3"


def test_a_profile_equals_itself(tmp_path: Path) -> None:
    profile = recorded.profile()
    found = compare.compare(profile, profile)
    assert found.metrics
    assert found.lines
    assert all(row.change in (0, None) for row in (*found.metrics, *found.lines))
    store.write_comparison(profile, profile, tmp_path / "compare.html")
    assert "total_time" in (tmp_path / "compare.html").read_text()
    assert "Nothing changed by 1 % or more." in compare.text(profile, profile)
    assert "total_time" in compare.text(profile, profile, least=0)


def slower(program: ProgramProfile, factor: float) -> ProgramProfile:
    return dataclasses.replace(program, total_ns=program.total_ns * factor)


def test_a_comparison_shows_what_changed() -> None:
    profile = recorded.profile()
    step, sine = profile.programs
    after = dataclasses.replace(profile, programs=(slower(step, 1.2), slower(sine, 1.001)))
    shown = compare.text(profile, after)
    assert "+20.0 %" in shown
    assert "jit_sin" not in shown
    assert "jit_sin" in compare.text(profile, after, least=0.0005)


def test_programs_are_matched_by_name_and_shapes() -> None:
    profile = recorded.profile()
    step = profile.programs[0]
    wide = dataclasses.replace(
        step,
        total_ns=7.0,
        held=tuple(tensor._replace(dtype=f"{tensor.dtype}[9]") for tensor in step.held),
    )
    before = dataclasses.replace(profile, programs=(step, wide))
    after = dataclasses.replace(profile, programs=(wide, step))
    assert compare.compare(before, after).changed(0.001).metrics == ()


def test_tensors_lie_where_memory_is() -> None:
    step = recorded.profile().programs[0]
    of = {memory: [t for t in step.held if t.memory == memory] for memory in ("hbm", "sbuf")}
    machine = recorded.profile().machine
    arguments = sum(tensor.nbytes for tensor in of["hbm"] if tensor.kind == "argument")
    assert arguments == (128 * 256 + 2 * 256 * 256) * 2
    assert of["sbuf"]
    for tensor in of["sbuf"]:
        assert tensor.address + tensor.nbytes <= machine.sbuf_partition_bytes
    for tensor in step.held:
        assert 0 <= tensor.first <= tensor.last < len(step.kernels)
