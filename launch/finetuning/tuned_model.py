"""The model that is tuned: a base with or without adapters, with or without a reference."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from launch.finetuning.adapter_files import load_adapter, save_adapter
from launch.finetuning.lora import Adapted, adapt, merged, shapes_of, with_recorded_adapters
from launch.finetuning.reference import PREFIX, with_reference, without_copies
from launch.finetuning.settings import TuningSettings
from launch.finetuning.starting import first_parameters, random_parameters
from launch.program import say
from launch.text import copy_companions
from models import pretrained
from models.parameters import Parameters
from models.pretrained import Described, Pretrained


@dataclass(frozen=True)
class TunedModel:
    """What is trained, and what becomes of it.

    Attributes:
      base: the model as it is loaded.
      model: the model as it is trained.
      adapted: the base with adapters, if there are any.
      loaded: parameters of adapters that were read, on the host.
    """

    base: Described
    model: Described
    adapted: Adapted | None
    loaded: Mapping[str, np.ndarray]

    @classmethod
    def of(cls, base: Described, settings: TuningSettings, *, reference: bool) -> "TunedModel":
        """The model that settings ask for. Raises ModelError for adapters that do not suit it."""
        adapted: Adapted | None = None
        loaded: Mapping[str, np.ndarray] = {}
        if settings.adapter is not None:
            adapted, loaded = load_adapter(Path(settings.adapter), base)
        elif settings.lora is not None:
            adapted = adapt(base, settings.lora)
        if adapted is not None:
            return cls(base, adapted.model, adapted, loaded)
        return cls(base, with_reference(base) if reference else base, None, loaded)

    @classmethod
    def recorded(cls, base: Described, record: Mapping[str, Any] | None) -> "TunedModel":
        """The model that `record` of another run describes; None: the base itself.

        Raises ModelError for layers that the base lacks.
        """
        if record is None:
            return cls(base, base, None, {})
        if record["adapters"]:
            adapted = with_recorded_adapters(base, record["adapters"])
            return cls(base, adapted.model, adapted, {})
        return cls(base, with_reference(base) if record["reference"] else base, None, {})

    @property
    def record(self) -> dict[str, Any]:
        """What a checkpoint says of this, as JSON."""
        adapters = () if self.adapted is None else self.adapted.adapters
        return {
            "reference": self.adapted is None and self.model is not self.base,
            "adapters": [[adapter.layer.name, adapter.rank, adapter.scale] for adapter in adapters],
        }

    @property
    def trained(self) -> frozenset[str] | None:
        """The paths of what the optimizer changes; None = all."""
        if self.adapted is not None:
            return self.adapted.trained()
        if self.model is self.base:
            return None
        return frozenset(shapes_of(self.base))

    def first_weights(
        self, directory: Path | None, seed: int, mesh: Mesh, targets: Mapping[str, Any]
    ) -> Parameters:
        """The weights to begin with, of a checkpoint or random, as `targets` want them."""
        own = {name: targets[name] for name in shapes_of(self.base)}
        weights = first_parameters(directory, self.base, mesh, own, seed)
        shardings = {name: target.sharding for name, target in targets.items()}
        placed = {
            name: jax.device_put(value.astype(targets[name].dtype), shardings[name])
            for name, value in self.loaded.items()
        }
        rest = targets.keys() - weights.keys() - placed.keys()
        copies = {name for name in rest if name.startswith(PREFIX)}
        for name in copies:
            value = weights[name.removeprefix(PREFIX)].astype(targets[name].dtype)
            placed[name] = jax.device_put(value, shardings[name], may_alias=False)
        new = rest - copies
        drawn = random_parameters(self.model, new, seed, shardings) if new else {}
        return weights | placed | drawn

    def save(
        self, directory: Path, step: int, parameters: Parameters, *, merge: bool, source: Path
    ) -> None:
        """Writes the adapters in PEFT's layout, or the whole model in that of Hugging Face, into a
        new folder of the directory; one that is there already is left as it is. Files that the
        directory has besides weights belong to the whole model, too."""
        whole = self.adapted is None or merge
        target = directory / f"{'model' if whole else 'adapter'}-{step}"
        if target.exists():
            say(f"{target} already exists and is left unchanged")
            return
        if not whole and self.adapted is not None:
            save_adapter(target, self.adapted, parameters, base=str(source))
        else:
            pretrained.save(target, self.merged(parameters))
            copy_companions(directory, target)
        say(f"{target} now holds {'the model' if whole else 'the adapters'}")

    def merged(self, parameters: Parameters) -> Pretrained:
        """The base with what was learnt, of the parameters of the model."""
        own = without_copies(parameters)
        if self.adapted is not None:
            adapted = self.adapted
            own = jax.jit(lambda weights: merged(adapted, weights))(own)
        graph, _ = self.base.architecture.abstract(self.base.config)
        return Pretrained(*self.base, graph, own)
