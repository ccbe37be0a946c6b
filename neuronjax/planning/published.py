"""Published times of whole models, and what predicts them: programs that are given as a table."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from neuronjax.errors import ConfigurationError, ScriptError
from neuronjax.planning.estimate import of_factory, setting_of
from neuronjax.planning.measure import Setting
from neuronjax.planning.record import Estimate
from neuronjax.planning.tracing import abstract_mesh
from neuronjax.planning.workload import Factory
from neuronjax.timing.calibration import CALIBRATION, Calibration
from neuronjax.timing.ranges import Traits
from neuronjax.timing.validation.leave_one_out import Predictor
from neuronjax.timing.validation.points import Kind, Point

PROTOCOL = """\
module:attribute names a sequence of dicts, one for each measurement:

  name, what, source   texts
  published            ns
  parts                dicts: what is timed and added up
    make       function as `neuronjax estimate` takes it
    target     the instance
    settings   keywords of the function; optional
    mesh       sizes by axis, such as data=4,model=8; optional
    flags      of the compiler, as in NEURON_CC_FLAGS; optional
    times      how often it runs; optional
    first_token   whether the published time is that to the first token, which includes the host;
                  optional
"""
"""How commands are told what was measured."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """A program that runs `times` times in what was measured."""

    make: Callable[..., Any]
    target: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    mesh: str | None = None
    flags: str = ""
    times: int = 1
    first_token: bool = False

    def predicted_ns(self, calibration: Calibration = CALIBRATION) -> float:
        """Time of all its runs. Of the constants only those of the host count."""
        version = self._setting.machine.chip.core.version
        call = calibration.host_call_ns[version] - CALIBRATION.host_call_ns[version]
        first = calibration.first_token_host_ns if self.first_token else 0.0
        return self.times * (self.estimate.step_ns + call) + first

    @property
    def _setting(self) -> Setting:
        return dataclasses.replace(setting_of(self.target, None), flags=self.flags)

    @cached_property
    def estimate(self) -> Estimate:
        """The estimate of one run of the program."""
        factory = Factory(make=self.make, name=_name(self.make), settings=self.settings)
        mesh = abstract_mesh(self.mesh) if self.mesh is not None else None
        return of_factory(factory, self._setting, mesh)


@dataclass(frozen=True)
class PublishedModel:
    """A measurement of a model, and the programs whose times add up to it."""

    point: Point
    parts: tuple[Part, ...]

    def predicted_ns(self, calibration: Calibration = CALIBRATION) -> float:
        """The sum of the predictions of its parts."""
        return sum(part.predicted_ns(calibration) for part in self.parts)

    @property
    def traits(self) -> Traits:
        """The traits of the part that takes most of the time."""
        return max(self.parts, key=Part.predicted_ns).estimate.traits


def _name(make: Callable[..., Any]) -> str:
    return f"{make.__module__}:{make.__name__}"


def load_published(spec: str) -> tuple[PublishedModel, ...]:
    """The published measurements in a table that is named `module:attribute`.

    ScriptError: there is no such table. ConfigurationError: it has other entries.
    """
    module_name, _, attribute = spec.partition(":")
    try:
        table = getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError) as error:
        raise ScriptError(f"cannot import the table {spec!r}: {error}.") from None
    return tuple(_read(entry) for entry in table)


def _read(entry: Mapping[str, Any]) -> PublishedModel:
    try:
        point = Point(
            entry["name"], Kind.MODEL, entry["what"], float(entry["published"]), entry["source"]
        )
        return PublishedModel(point, tuple(Part(**part) for part in entry["parts"]))
    except (KeyError, TypeError) as error:
        raise ConfigurationError(
            f"a measurement is malformed: {error}. The table should look like this:\n{PROTOCOL}"
        ) from None


def predictors_of(published: Sequence[PublishedModel]) -> Mapping[Point, Predictor]:
    """What predicts each measurement."""
    return {model.point: model.predicted_ns for model in published}
