"""What clients would see of a run, and of runs at several loads."""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from launch.serving.virtual.curves import curves, page
from launch.serving.virtual.outcome import Outcome
from launch.serving.virtual.summary import Summary
from launch.settings import check_settings, setting

SHARES = (0.5, 0.9, 0.99)
KNEE = 0.9  # share of requests within the objective up to which a load counts as carried


@dataclass(frozen=True, kw_only=True)
class Objective:
    """What a request must get to count as goodput, and what the machine costs."""

    slo_ttft: float = setting(1.0, "Limit for the time to the first token, in seconds.", lowest=0)
    slo_tpot: float = setting(0.1, "Limit for the time per further token, in seconds.", lowest=0)
    price: float | None = setting(None, "US dollars per hour for a machine.", lowest=0)

    def __post_init__(self) -> None:
        check_settings(self)


def summarise(outcome: Outcome, rate: float, objective: Objective, machines: int = 1) -> Summary:
    """The numbers of a run on so many machines."""
    counters, duration = outcome.counters, outcome.duration
    per_token = outcome.per_token
    good = outcome.to_first <= objective.slo_ttft
    good &= ~(per_token > objective.slo_tpot)  # NaN: one token has no time between tokens
    tokens = int(outcome.tokens.sum())
    dollars = None if objective.price is None else objective.price * machines / 3600 * duration
    return Summary(
        rate=rate,
        requests=len(outcome.arrived),
        duration=duration,
        ttft=_quantiles(outcome.to_first),
        tpot=_quantiles(per_token[~np.isnan(per_token)]),
        itl=tuple(outcome.between_tokens.quantile(share) for share in SHARES),
        e2e=_quantiles(outcome.finished - outcome.arrived),
        requests_per_second=len(outcome.arrived) / duration,
        tokens_per_second=tokens / duration,
        within_slo=float(good.mean()),
        goodput=float(good.sum()) / duration,
        busy=outcome.busy / duration,
        steps=outcome.steps,
        preemptions=counters.preemptions,
        prefix_hit_share=counters.prefix_hits / max(counters.prefix_queries, 1),
        usd_per_million_tokens=None if dollars is None else dollars / tokens * 1e6,
    )


def knee(summaries: Sequence[Summary]) -> Summary | None:
    """The highest load that is carried: nearly all of its requests are within the objective."""
    carried = [summary for summary in summaries if summary.within_slo >= KNEE]
    return max(carried, key=lambda summary: summary.rate, default=None)


Column = tuple[str, Callable[[Summary], str]]
_COLUMNS: tuple[Column, ...] = (
    ("req/s", lambda s: f"{s.rate:g}"),
    ("TTFT p50", lambda s: _seconds(s.ttft[0])),
    ("p90", lambda s: _seconds(s.ttft[1])),
    ("p99", lambda s: _seconds(s.ttft[2])),
    ("TPOT p50", lambda s: _seconds(s.tpot[0])),
    ("p90", lambda s: _seconds(s.tpot[1])),
    ("p99", lambda s: _seconds(s.tpot[2])),
    ("ITL p50", lambda s: _seconds(s.itl[0])),
    ("p90", lambda s: _seconds(s.itl[1])),
    ("p99", lambda s: _seconds(s.itl[2])),
    ("tokens/s", lambda s: f"{s.tokens_per_second:.0f}"),
    ("in SLO", lambda s: f"{s.within_slo:.1%}"),
    ("goodput", lambda s: f"{s.goodput:.3g}/s"),
    ("busy", lambda s: f"{s.busy:.0%}"),
    ("$/M tokens", lambda s: _dollars(s.usd_per_million_tokens)),
)


HEADINGS = [name for name, _ in _COLUMNS]


def cells(summary: Summary) -> list[str]:
    """What a table says of a run, below HEADINGS."""
    return [tell(summary) for _, tell in _COLUMNS]


def table(summaries: Sequence[Summary]) -> str:
    """A line for each load."""
    return aligned([HEADINGS, *map(cells, summaries)])


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Lines of columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = (
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    )
    return "\n".join(lines)


def write(summaries: Sequence[Summary], folder: Path, facts: dict[str, Any]) -> None:
    """traffic.json, and the curves as traffic.svg and traffic.html."""
    folder.mkdir(parents=True, exist_ok=True)
    best = knee(summaries)
    values = {
        **facts,
        "knee": None if best is None else best.rate,
        "runs": [asdict(summary) for summary in summaries],
    }
    (folder / "traffic.json").write_text(json.dumps(values, indent=1) + "\n")
    (folder / "traffic.svg").write_text(curves(summaries))
    (folder / "traffic.html").write_text(page(summaries))


def _quantiles(values: np.ndarray) -> tuple[float, ...]:
    if not len(values):
        return (math.nan,) * len(SHARES)
    return tuple(float(value) for value in np.quantile(values, SHARES))


def _seconds(value: float) -> str:
    if math.isnan(value):
        return "-"
    return f"{1e3 * value:.3g} ms" if value < 1 else f"{value:.3g} s"


def _dollars(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
