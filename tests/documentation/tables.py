"""The tables of the documentation that are made from the code.

python -m tests.documentation.tables    # renews them
"""

from __future__ import annotations

import ast
import inspect
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from launch.tasks.table import ALSO
from models.diffusion.kinds import KINDS
from models.registry import ARCHITECTURES
from neuronjax import options
from neuronjax.display import duration
from neuronjax.errors import shortened
from neuronjax.legalize.rules import RULES
from neuronjax.legalize.rules.elsewhere import CODES
from neuronjax.lower.tuning import choices
from neuronjax.machine.chips import CHIPS
from neuronjax.machine.instances import INSTANCES
from neuronjax.machine.specs import GIB, GIGA, MIB, TERA, ChipSpec
from neuronjax.nki import language
from neuronjax.nki.constants import MemoryRegion
from neuronjax.nki.isa import NOT_BUILT
from neuronjax.nki.known_failures import FAILURES
from neuronjax.nki.signatures import SIGNATURES
from neuronjax.options import Version
from neuronjax.profiling import findings
from neuronjax.timing.ranges import PARENTS, RESULTS, classes, coverage, measured, members
from neuronjax.timing.validation.points import Kind
from tests.conftest import PROJECT
from tests.machine.test_device_memory import REPORTS
from tests.models.parity.cases import CASES
from tests.planning.generations import CLAIMS

DOCS = PROJECT / "docs"
SURVEY = PROJECT / "tests" / "torch" / "survey" / "survey.json"
TWICE = SURVEY.with_name("twice.json")
CLIENTS = PROJECT / "tests" / "clients" / "results.json"
END = "<!-- end of table -->\n"


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table, a line each row."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def described(record: type) -> dict[str, str]:
    """Field -> the string that stands below it in the source of a class, as one line."""
    (tree,) = ast.parse(inspect.getsource(record)).body
    assert isinstance(tree, ast.ClassDef)
    texts = {}
    for field, text in zip(tree.body, tree.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
            assert isinstance(field.target, ast.Name)
            texts[field.target.id] = " ".join(ast.literal_eval(text.value).split())
    return texts


def option_rows() -> Iterable[Sequence[str]]:
    """A row for each option: its variables, its name in Python, its default and what it means."""
    texts = described(options.Options)
    for field in fields(options.Options):
        names = [name for name, (target, _) in options.VARIABLES.items() if target == field.name]
        if field.name == "fail_on_nan":
            names = ["NEURON_FAIL_ON_NAN", "NEURON_RT_NUMERICAL_ERRORS_VERBOSITY=critical"]
        variables = ", ".join(f"`{name}`" for name in names)
        text = texts[field.name].replace("``", "`")
        yield variables, f"`{field.name}`", default_of(field.default), text


def default_of(value: Any) -> str:
    """A default as the environment would write it."""
    if value is None or value == ():
        return ""
    return f"`{int(value) if isinstance(value, bool) else value}`"


CHIP_ROWS: Mapping[str, Callable[[ChipSpec], str]] = {
    "core": lambda chip: chip.core.name,
    "cores": lambda chip: str(chip.cores),
    "logical-core configurations": lambda chip: ", ".join(
        f"{lnc}{' (default)' * (lnc == chip.default_lnc)}" for lnc in chip.allowed_lncs
    ),
    "HBM": lambda chip: f"{chip.hbm.capacity_bytes / GIB:g} GiB",
    "HBM bandwidth": lambda chip: f"{chip.hbm.bandwidth / GIGA:,.0f} GB/s",
    "SBUF per core": lambda chip: size(chip.core.sbuf.size_bytes),
    "usable per partition": lambda chip: size(chip.core.sbuf.usable_partition_bytes),
    "PSUM per core": lambda chip: size(chip.core.psum.size_bytes),
    "DMA engines per core": lambda chip: str(chip.core.dma.engines or "–"),
    "Tensor engine clock": lambda chip: f"{chip.core.tensor.clock_hz / GIGA:g} GHz",
    "BF16 peak": lambda chip: peak(chip, "bfloat16"),
    "FP32 peak": lambda chip: peak(chip, "float32"),
    "FP8 (E4M3) peak": lambda chip: peak(chip, "float8_e4m3"),
    "MXFP8 peak": lambda chip: peak(chip, "float8_e4m3fn_x4"),
    "NeuronLink": lambda chip: f"{chip.neuronlink_bandwidth / GIGA:,.0f} GB/s",
}
"""Row of the table of chips -> what stands in it."""


def size(count: int) -> str:
    """Bytes in the unit that fits."""
    if not count:
        return "–"
    return f"{count / MIB:g} MiB" if count >= MIB else f"{count:,} bytes"


def peak(chip: ChipSpec, dtype: str) -> str:
    """The dense peak of all cores, from their clocks."""
    if dtype not in chip.core.tensor.rates:
        return "–"
    return f"{chip.flops(dtype) / TERA:,.0f} TFLOPS"


def chip_rows() -> Iterable[Sequence[str]]:
    """A row for each property, a column for each chip."""
    for name, text in CHIP_ROWS.items():
        yield name, *map(text, CHIPS.values())


def target_rows() -> Iterable[Sequence[str]]:
    """A row for each machine."""
    for name, instance in INSTANCES.items():
        cores = [f"{instance.logical_cores(lnc)} (LNC {lnc})" for lnc in instance.chip.allowed_lncs]
        yield (
            f"`{name}`",
            f"{instance.chips} × {instance.chip.name}",
            str(instance.hosts),
            ", ".join(cores),
            f"{instance.hbm_bytes / GIB:,.0f} GiB",
        )


def support_rows() -> Iterable[Sequence[str]]:
    """A row for each architecture of the registry."""
    for name, architecture in ARCHITECTURES.items():
        variants = [case.variant or "plain" for case in CASES if case.architecture == name]
        yield name, architecture.task, "; ".join(variants) or "not yet"


def pipeline_rows() -> Iterable[Sequence[str]]:
    """A row for each pipeline of diffusers."""
    for name, kind in KINDS.items():
        tasks = (kind.task, *ALSO.get(kind.task, ()))
        yield name, ", ".join(tasks), str(kind.steps), str(kind.guidance)


def language_rows() -> Iterable[Sequence[str]]:
    """A row for each kind of names of nki.language, and for each that is not built."""
    functions = [name for name, value in language.FUNCTIONS.items() if callable(value)]
    operators = [name for name in language.FUNCTIONS if name not in functions]
    kinds = {
        "functions on tiles": functions,
        "instruction operators": operators,
        "dtypes": language.DTYPES,
        "memories": [region.name for region in MemoryRegion],
    }
    for kind, names in kinds.items():
        yield kind, ", ".join(f"`{name}`" for name in sorted(names))
    for name, reason in language.NOT_BUILT.items():
        yield f"`{name}`", f"not built: {reason}"


def nki_rows() -> Iterable[Sequence[str]]:
    """A row for each function of nki.isa: its parameters, or that it says so on call."""
    yield from ((f"`{name}`", f"`{parameters}`") for name, parameters in SIGNATURES.items())
    yield "`register_alloc`", "`x=None`"
    yield from ((f"`{name}`", f"not built: {reason}") for name, reason in NOT_BUILT.items())


def generation_rows() -> Iterable[Sequence[str]]:
    """A row for each published ratio of two machines."""
    for claim in CLAIMS:
        predicted = "–" if claim.predicted is None else f"{claim.predicted:.1f}"
        claimed = f"{claim.claimed:.1f}"
        bounds = claim.of_programs
        programs = "–" if bounds is None else f"{bounds[0]:.1f} to {bounds[1]:.1f}"
        yield (
            claim.what, claim.newer, claim.older, claimed, predicted, programs, claim.difference,
            claim.source,
        )  # fmt: skip


def range_rows() -> Iterable[Sequence[str]]:
    """A row for each class of programs and of public points: how its ranges hold."""
    points = measured()
    checked = {row.class_name: row for row in coverage(points)}
    for name in dict.fromkeys((*checked, *PARENTS)):
        row, number = checked.get(name), str(len(members(name, points)))
        if row is None:
            wider = next(wider for wider in classes(name) if wider in checked)
            yield name, number, "", f"as {wider}", ""
        else:
            share = f"{row.within / row.points:.0%}"
            yield name, number, share, f"{row.low:.2f} to {row.high:.2f}", f"{row.median_width:.0%}"


def report_rows() -> Iterable[Sequence[str]]:
    """A row for each category of each public out-of-memory report, in MiB."""
    for report in REPORTS.values():
        for kind, reported in report.reported.items():
            low, nbytes, high = report.predicted(kind)
            numbers = (f"{number:,.0f}" for number in (reported, nbytes))
            yield report.what, kind, *numbers, f"{low:,.0f} to {high:,.0f}"


def model_rows() -> Iterable[Sequence[str]]:
    """A row for each whole model of the committed results."""
    for point in json.loads(RESULTS.read_text())["points"]:
        if point["kind"] == Kind.MODEL.value:
            times = (duration(point[name]) for name in ("predicted", "published"))
            ratios = (f"{point[name]:.2f}" for name in ("ratio", "ratio_left_out"))
            yield point["name"], point["what"], *times, *ratios, point["class"]


def rule_rows() -> Iterable[Sequence[str]]:
    """A row for each rule of the legality check, by code."""
    for rule in sorted(RULES, key=lambda rule: rule.code):
        codes = ", ".join(f"`{code}`" for code in (rule.code, *rule.also))
        yield codes, rule.what.replace("|", "\\|"), rule.severity.label, rule.remedy


def failure_rows() -> Iterable[Sequence[str]]:
    """A row for each thing that releases do wrong with kernels, the latest first."""
    for failure in sorted(FAILURES, key=lambda failure: failure.since, reverse=True):
        first, last = failure.cores
        sdks, cores = f"{_version(failure.since)} on", f"v{first} on"
        if failure.until is not None:
            sdks = f"{_version(failure.since)} until {_version(failure.until)}"
        if last in (2, 3, 4):
            cores = f"v{first}" if first == last else f"v{first} and v{last}"
        first, *others = failure.places
        place = f"{first} and {len(others)} others" if others else first
        yield place, failure.what, sdks, cores, failure.source


def _version(sdk: Version) -> str:
    return ".".join(map(str, sdk))


def choice_rows() -> Iterable[Sequence[str]]:
    """A row for each number that the compiler was free to choose."""
    for choice in choices():
        yield f"`{choice.name}`", f"{choice.default:,}", *choice[2:]


def client_rows(are_maxtext: bool) -> Iterable[Sequence[str]]:
    """A row for each program that `python -m tests.clients` ran."""
    for name, row in sorted(json.loads(CLIENTS.read_text()).items()):
        client, _, what = name.partition(": ")
        if (client in ("maxtext", "ahead")) == are_maxtext:
            ours = row["outcomes"]["neuron"]
            result = "agrees with `cpu`" if row["agrees"] else f"differs: {ours['error']}"
            if client == "ahead" and row["agrees"]:
                seconds, mfu = ours["values"]
                result = f"{seconds:.3g} s a step, MFU {mfu:.0f} %"
            version = row["version"].replace(" jax", ", jax")
            yield what or f"`{client}`", version, f"`{row['commit']}`", result


def survey_rows() -> Iterable[Sequence[str]]:
    """A row for each part of the survey, and for each of its models that did not pass."""
    for part, rows in json.loads(SURVEY.read_text()).items():
        passed = sum(row["outcome"] in PASSED for row in rows.values())
        commits = ", ".join(f"`{row}`" for row in sorted({row["commit"] for row in rows.values()}))
        yield f"**{part}**", f"{passed} of {len(rows)} {OUTCOMES[part]} (at {commits})"
        for name, row in rows.items():
            if row["outcome"] not in PASSED:
                reason = row.get("reason", f"differs by {row.get('error')}")
                text = reason.partition(" Raised in")[0].replace("|", "\\|")
                yield f"`{name}`", shortened(f"{WHERE[row['outcome']]}{text}", 200)


def twice_rows() -> Iterable[Sequence[str]]:
    """A row for each model that is estimated in PyTorch's way and in that of `models`."""
    for name, row in json.loads(TWICE.read_text()).items():
        theirs, ours = row["torch_ns"], row["models_ns"]
        ratio = f"{theirs / ours:.2f}"
        yield name, duration(theirs), duration(ours), ratio, f"`{row['commit']}`"


PASSED = ("equal", "attributed")
OUTCOMES: Mapping[str, str] = {
    "transformers": "equal to PyTorch, and estimated",
    "decoders": "equal to PyTorch in one token after a static cache, and estimated",
    "diffusers": "equal to PyTorch, and estimated",
    "timm": "equal to PyTorch, and estimated",
    "training": "with PyTorch's losses and statistics in 20 steps of SGD and of AdamW",
    "attribution": "with 95 % of a step at lines of the model's file, and at paths of modules",
}
WHERE: Mapping[str, str] = {
    "fails: made": "PyTorch itself does not make it: ",
    "fails: PyTorch": "PyTorch itself does not run it: ",
    "fails: JAX": "",
    "fails: estimate": "equal to PyTorch, but not estimated: ",
    "fails": "",
    "differs": "",
    "elsewhere": "",
}

CLIENT_HEAD = ("program", "version", "commit", "result")

TABLES: Mapping[str, tuple[str, Callable[[], str]]] = {
    "clients": ("coverage.md", lambda: markdown(CLIENT_HEAD, client_rows(are_maxtext=False))),
    "maxtext": ("maxtext.md", lambda: markdown(CLIENT_HEAD, client_rows(are_maxtext=True))),
    "survey": ("pytorch.md", lambda: markdown(["model", "result"], survey_rows())),
    "twice": (
        "pytorch.md",
        lambda: markdown(["model", "PyTorch", "`models/`", "ratio", "commit"], twice_rows()),
    ),
    "options": (
        "options.md",
        lambda: markdown(["variable", "in Python", "default", "meaning"], option_rows()),
    ),
    "chips": (
        "chips.md",
        lambda: markdown(["", *CHIPS], chip_rows()),
    ),
    "targets": (
        "chips.md",
        lambda: markdown(["target", "chips", "hosts", "logical cores", "HBM"], target_rows()),
    ),
    "rules": (
        "findings.md",
        lambda: markdown(["code", "what", "severity", "remedy"], rule_rows()),
    ),
    "elsewhere": (
        "findings.md",
        lambda: markdown(
            ["code", "where it is decided, or why it is not"],
            ((f"`{code}`", reason) for code, reason in CODES.items()),
        ),
    ),
    "kernel failures": (
        "findings.md",
        lambda: markdown(
            ["where", "what a release does wrong", "SDK", "NeuronCore", "source"], failure_rows()
        ),
    ),
    "causes": (
        "findings.md",
        lambda: markdown(
            ["finding", "when it is reported"],
            ((f"`{name}`", when) for name, (_, when) in findings.RULES.items()),
        ),
    ),
    "generations": (
        "validation.md",
        lambda: markdown(
            [
                "",
                "newer",
                "older",
                "claimed",
                "from the records",
                "of a program, 80 %",
                "why they differ",
                "source",
            ],
            generation_rows(),
        ),
    ),
    "memory reports": (
        "memory.md",
        lambda: markdown(["report", "kind", "reported", "here", "range"], report_rows()),
    ),
    "ranges": (
        "validation.md",
        lambda: markdown(["class", "points", "within", "range", "median width"], range_rows()),
    ),
    "models": (
        "validation.md",
        lambda: markdown(
            ["point", "what", "predicted", "published", "ratio", "left out", "class"],
            model_rows(),
        ),
    ),
    "choices": (
        "engines.md",
        lambda: markdown(["number", "default", "unit", "why", "where it matters"], choice_rows()),
    ),
    "language": ("nki.md", lambda: markdown(["what", "names"], language_rows())),
    "isa": ("nki.md", lambda: markdown(["function", "parameters"], nki_rows())),
    "support": (
        "models.md",
        lambda: markdown(["architecture", "task", "compared with"], support_rows()),
    ),
    "pipelines": (
        "models.md",
        lambda: markdown(["pipeline", "`--task`", "`--steps`", "`--guidance`"], pipeline_rows()),
    ),
}
"""Table -> its page, and its text."""


def renewed(page: str, name: str, table: str) -> str:
    """A page with the table of today between its marks. Raises `ValueError`: there are none."""
    begin = f"<!-- table: {name} -->\n"
    before, mark, rest = page.partition(begin)
    _, end, after = rest.partition(END)
    if not mark or not end:
        raise ValueError(f"the page lacks the lines {begin!r} and {END!r}")
    return before + begin + "\n" + table + "\n" + END + after


def renew() -> None:
    """Writes all tables anew."""
    for name, (file, table) in TABLES.items():
        page: Path = DOCS / file
        page.write_text(renewed(page.read_text(), name, table()))


if __name__ == "__main__":
    renew()
