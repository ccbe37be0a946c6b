"""`neuronjax.profile`: records the programs that run in a block, and writes reports about them."""

from __future__ import annotations

import html
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import jax

from neuronjax.display import Displayed
from neuronjax.errors import ConfigurationError, NeuronError
from neuronjax.jaxlib_api import PLATFORM
from neuronjax.pjrt.plugin import tables
from neuronjax.profiling import store, text
from neuronjax.profiling.findings import Finding, findings
from neuronjax.profiling.page import report
from neuronjax.profiling.records import Profile
from neuronjax.runtime.client import Client
from neuronjax.runtime.recording import Recording


@dataclass(repr=False)
class Recorded(Displayed):
    """A recording; `profile` is set at its end."""

    folder: Path | None
    profile: Profile | None = None

    @property
    def findings(self) -> list[Finding]:
        """What is slow, costliest first."""
        return findings(self.profile) if self.profile else []

    def _repr_html_(self) -> str:
        """The report, in a frame of its own."""
        if self.profile is None:
            return super()._repr_html_()
        page = html.escape(report(self.profile))
        return f'<iframe srcdoc="{page}" style="width: 100%; height: 800px; border: 0"></iframe>'

    def parts(self) -> tuple[str]:
        return (text.text(self.profile) if self.profile else "the recording has not ended yet.",)


@contextmanager
def profile(folder: str | Path | None = None) -> Iterator[Recorded]:
    """Records every run of a program on platform ``neuron`` until the block ends.

    At its end, programs are lowered and timed once, and `folder` gets ``report.html``,
    ``trace.pftrace`` and ``trace.json`` (Perfetto), ``summary.json`` (Neuron Explorer's names),
    ``profile.json`` and, with pyarrow, ``parquet/``. If it is None, nothing is written. Times are
    simulated, and do not depend on how values are computed (option ``executor``).

    ConfigurationError: the platform is not in use, or the folder cannot be written to.
    """
    recorded = Recorded(None if folder is None else Path(folder))
    if recorded.folder is not None:
        store.prepare(recorded.folder)
    client = client_in_use()
    recording = client.new_recording()
    client.observers.append(recording)
    try:
        yield recorded
    except BaseException as raised:
        client.observers.remove(recording)
        try:
            _end(recorded, recording)
        except NeuronError as error:  # the block's own exception is the one to show
            raised.add_note(f"Its profile was lost: {error}")
        raise
    client.observers.remove(recording)
    _end(recorded, recording)


def _end(recorded: Recorded, recording: Recording) -> None:
    recorded.profile = recording.profile()
    if recorded.folder is not None:
        store.write(recorded.profile, recorded.folder)


def clients() -> list[Client]:
    """The live clients of this process."""
    return [state.client for table in tables() for state in table.plugin.clients]


def end_process_recording() -> Profile | None:
    """Ends the recording that option ``profile_to`` began, and writes it; None: nothing ran."""
    recordings = [client.recording for client in clients() if client.recording is not None]
    return recordings[-1].end() if recordings else None


def client_in_use() -> Client:
    """The client of the platform, started if need be."""
    try:
        jax.devices(PLATFORM)
    except RuntimeError as error:
        raise ConfigurationError(
            f"nothing runs here: JAX does not use the platform {PLATFORM!r} "
            f"({error}). Set JAX_PLATFORMS=neuron."
        ) from None
    return clients()[-1]
