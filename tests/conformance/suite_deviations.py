"""Why a test that passes on `cpu` fails in the default setting: found by running it again.

A loss is due to the first change of the setting that makes the test pass: without warnings about
the compiler's limits, or without one row of the platform's table of deviations. What passes with
XLA's arithmetic but with no single row left out is due to several of them; what fails even then is
due to the platform.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from neuronjax.legalize.numerics import DEVIATIONS
from tests.conformance import suite_runner, suite_settings
from tests.conformance.suite_runner import Run, Unit

PLATFORM = "platform"
SEVERAL = "several deviations"
CHANGING = "changes from run to run"
LEGALITY = "legality"


@dataclass(frozen=True)
class Change:
    """A change of the default setting, and the reason it stands for."""

    reason: str
    variables: Mapping[str, str]
    without: tuple[str, ...] = ()


CHANGES = (
    Change(CHANGING, {}),
    Change(LEGALITY, {"NEURONJAX_LEGALITY": "off"}),
    *(Change(row.name, {}, (row.name,)) for row in DEVIATIONS),
)
IEEE = Change(SEVERAL, suite_settings.SETTINGS["ieee"])


def reasons(
    run: Run,
    units: Mapping[str, Unit],
    lost: Mapping[str, Sequence[str]],
    work: Path,
    changes: Sequence[Change] = CHANGES,
) -> Iterator[tuple[str, str]]:
    """Test id and reason of every test in ``lost``, the lost tests of each unit.

    Args:
      run: the default setting.
      units: by name.
      lost: unit name to test ids.
      work: folder for the records of these runs; the same folder continues.
      changes: what is tried, in this order.
    """
    for name, identities in lost.items():
        passes = _passing(run, units[name], work)
        left = set(passes(IEEE, identities))
        yield from ((identity, PLATFORM) for identity in identities if identity not in left)
        for change in changes:
            if left:
                explained = passes(change, sorted(left))
                yield from ((identity, change.reason) for identity in explained)
                left -= set(explained)
        yield from ((identity, SEVERAL) for identity in sorted(left))


def _passing(run: Run, unit: Unit, work: Path) -> Callable[[Change, Sequence[str]], list[str]]:
    def passing(change: Change, identities: Sequence[str]) -> list[str]:
        again = replace(
            run,
            environment={**run.environment, **change.variables},
            records=work / change.reason.replace(" ", "_"),
            only=tuple(identities),
            without=change.without,
        )
        suite_runner.run_unit(again, unit)
        record = suite_runner.read(suite_runner.record_path(again.records, unit.name))
        outcomes = record.outcomes
        return [i for i in identities if outcomes.get(i, {}).get("outcome") == "passed"]

    return passing
