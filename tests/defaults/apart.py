"""Running a table of cases in a process of its own, in which nothing is set and warnings are
errors."""

from __future__ import annotations

import json

from tests.conftest import RunPython

_UNSET = dict.fromkeys(("NEURONJAX_NUMERICS", "NEURONJAX_LEGALITY", "NEURONJAX_SIMULATE"))


def outcomes(table: str, run_python: RunPython, **env: str) -> dict[str, str]:
    """What is wrong with each row of ``CASES`` of a module beside this one; empty if nothing is."""
    code = f"from tests.defaults import case, {table} as table; case.main(table.CASES)"
    done = run_python(code, {**_UNSET, "PYTHONWARNINGS": "error", **env}, timeout=500)
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return found
