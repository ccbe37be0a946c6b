"""A recording as a folder: profile.json and all outputs derived from it."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from neuronjax.errors import ConfigurationError, ProfileError
from neuronjax.profiling import chrome, page, perfetto, summary, tables
from neuronjax.profiling.events import trace
from neuronjax.profiling.records import Profile, from_json

PROFILE, SUMMARY, REPORT = "profile.json", "summary.json", "report.html"
TRACE, PERFETTO_TRACE = "trace.json", "trace.pftrace"

_log = logging.getLogger("neuronjax.profile")


def prepare(folder: Path) -> None:
    """Makes the folder. ConfigurationError: it cannot be written to."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / PROFILE).touch()
    except OSError as error:
        raise _refusal(folder, error) from None


FILES: dict[str, Callable[[Profile], str | bytes]] = {
    PROFILE: lambda profile: json.dumps(profile.to_json(), separators=(",", ":")),
    SUMMARY: lambda profile: json.dumps(summary.document(profile), indent=2),
    TRACE: lambda profile: json.dumps(chrome.document(trace(profile)), separators=(",", ":")),
    PERFETTO_TRACE: lambda profile: perfetto.encoded(trace(profile)),
    REPORT: page.report,
}
"""Name of a file -> its contents."""


def write(profile: Profile, folder: Path) -> None:
    """Writes all files; one that cannot be made is logged, and the others are written.

    ConfigurationError: the folder cannot be written to.
    """
    prepare(folder)
    try:
        for name, contents in FILES.items():
            with _log_defects(folder / name):
                made = contents(profile)
                (folder / name).write_bytes(made.encode() if isinstance(made, str) else made)
        with _log_defects(folder / tables.FOLDER):
            tables.write(profile, folder)
    except OSError as error:
        raise _refusal(folder, error) from None


@contextmanager
def _log_defects(path: Path) -> Iterator[None]:
    """Logs a defect of ours, which must not cost the other files."""
    try:
        yield
    except OSError:
        raise
    except Exception:
        _log.exception("%s was not written, which is a defect of neuronjax", path)


def write_comparison(before: Profile, after: Profile, path: Path) -> None:
    """Writes the report that compares two recordings. ConfigurationError: it cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(page.comparison(before, after))
    except OSError as error:
        raise _refusal(path.parent, error) from None


def read(folder: Path) -> Profile:
    """The recording in a folder. ProfileError: there is none, or it is damaged."""
    path = folder / PROFILE if folder.is_dir() else folder
    try:
        given = json.loads(path.read_text())
    except OSError as error:
        raise ProfileError(
            f"there is no profile in {str(folder)!r} ({error.strerror}); give the folder of "
            "`neuronjax profile --out`, of neuronjax.profile or of NEURONJAX_PROFILE_TO."
        ) from None
    except (ValueError, RecursionError):
        raise ProfileError(f"{str(path)!r} is not a profile; record it again.") from None
    return from_json(given)


def _refusal(folder: Path, error: OSError) -> ConfigurationError:
    return ConfigurationError(
        f"the profile's folder {str(folder)!r} cannot be written to: {error.strerror}. Name a "
        "folder of yours."
    )
