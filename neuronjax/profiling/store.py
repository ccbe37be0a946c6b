"""A recording as a folder: profile.json and all outputs derived from it."""

from __future__ import annotations

import json
from pathlib import Path

from neuronjax.errors import ConfigurationError, ProfileError
from neuronjax.profiling import chrome, page, perfetto, summary, tables
from neuronjax.profiling.events import trace
from neuronjax.profiling.records import Profile, from_json

PROFILE, SUMMARY, REPORT = "profile.json", "summary.json", "report.html"
TRACE, PERFETTO_TRACE = "trace.json", "trace.pftrace"


def prepare(folder: Path) -> None:
    """Makes the folder. ConfigurationError: it cannot be written to."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / PROFILE).touch()
    except OSError as error:
        raise _refused(folder, error) from None


def write(profile: Profile, folder: Path) -> None:
    """Writes all files. ConfigurationError: the folder cannot be written to."""
    prepare(folder)
    try:
        (folder / PROFILE).write_text(json.dumps(profile.to_json(), separators=(",", ":")))
        (folder / SUMMARY).write_text(json.dumps(summary.document(profile), indent=2))
        events = trace(profile)
        (folder / TRACE).write_text(json.dumps(chrome.document(events), separators=(",", ":")))
        (folder / PERFETTO_TRACE).write_bytes(perfetto.encoded(events))
        (folder / REPORT).write_text(page.report(profile))
        tables.write(profile, folder)
    except OSError as error:
        raise _refused(folder, error) from None


def write_comparison(before: Profile, after: Profile, path: Path) -> None:
    """Writes the report that compares two recordings. ConfigurationError: it cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(page.comparison(before, after))
    except OSError as error:
        raise _refused(path.parent, error) from None


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


def _refused(folder: Path, error: OSError) -> ConfigurationError:
    return ConfigurationError(
        f"the profile's folder {str(folder)!r} cannot be written to: {error.strerror}. Name a "
        "folder of yours."
    )
