"""A row of the registry: a Hugging Face architecture and its model."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from flax import nnx

from models.draws import Draws
from models.parallel.tensor import Sharing
from models.parameters import Parameters, split_abstract
from models.published.defaults import DEFAULTS, Defaults
from models.settings import read_model, write_settings
from models.weights.fields import Fields
from models.weights.safetensors import StoredTensor
from models.weights.table import KeyTable


@dataclass(frozen=True)
class Architecture:
    """A supported architecture.

    The config is a frozen dataclass with, among others, the fields `dtype` (of activations) and
    `param_dtype` (of stored weights), both names such as "float32".
    """

    name: str  # as in `architectures` of config.json, such as "LlamaForCausalLM"
    model_type: str  # as in `model_type` of config.json, such as "llama"
    family: str  # folder of models/ that holds the model
    task: str  # such as "text-generation": a key of launch's table of tasks
    read_config: Callable[[Fields], Any]
    model: Callable[..., nnx.Module]  # called with (config, rngs=…)
    keys: Callable[[Any], KeyTable]  # of the config
    # Defaults of its library for fields of config.json that follow from settings of the config.
    settings: Mapping[str, Any] = field(default_factory=dict)
    # The config once the checkpoint's tensors are known by name, for what config.json leaves open.
    refine: Callable[[Any, Mapping[str, Any]], Any] = lambda config, tensors: config

    # Tensors of other files of a directory, which replace those of the same names.
    beside: Callable[[Path], Mapping[str, StoredTensor]] = lambda directory: {}

    # The config for a mesh of these axes where sizes that zeros fill up are those of caches too.
    padded: Callable[[Any, Mapping[str, int]], Any] = lambda config, mesh: config

    # Whose layout a checkpoint has: "transformers" or "diffusers".
    library: str = "transformers"

    # How the cores of a tensor-parallel group share it; None leaves it to XLA's partitioner.
    sharing: Sharing | None = None

    @classmethod
    def of(
        cls,
        name: str,
        config: Any,
        model: Callable[..., nnx.Module],
        keys: KeyTable | Callable[[Any], KeyTable],
        *,
        model_type: str | None = None,
        family: str | None = None,
        read: Callable[[Fields], Mapping[str, Any] | None] = lambda fields: None,
        parts: Sequence[Any] = (),
        **others: Any,
    ) -> "Architecture":
        """An architecture whose config is what its settings read from config.json; `config` has
        their defaults, and `parts` are configs with more of them.

        `read` returns settings that stand there in another form, if any do, and raises ConfigError
        for what is not supported. `keys` may be one table for all configs. The family is the folder
        of the model unless given, and the model type has the family's name.
        """
        family = family or model.__module__.split(".")[1]

        def read_config(fields: Fields) -> Any:
            return read_model(type(config), fields, **(read(fields) or {}))

        return cls(
            name=name,
            model_type=family if model_type is None else model_type,
            family=family,
            read_config=read_config,
            model=model,
            keys=(lambda config: keys) if isinstance(keys, KeyTable) else keys,
            settings={k: v for part in (*parts, config) for k, v in write_settings(part).items()},
            **others,
        )

    @property
    def known(self) -> Defaults:
        """The fields of config.json that it knows."""
        known = DEFAULTS.get(self.model_type or self.name, Defaults())
        return replace(known, config={**self.settings, **known.config})

    def config_of(self, fields: Fields) -> Any:
        """The config for a config.json. Raises ConfigError if it cannot be used."""
        fields.refuse_others(self.known)
        return self.read_config(fields.of_family(self.known))

    def build(self, config: Any, seed: int = 0) -> nnx.Module:
        """The model with random weights."""
        return self.model(config, rngs=Draws(seed))

    def abstract(self, config: Any) -> tuple[nnx.GraphDef[Any], Parameters]:
        """The model's structure, and its parameters as jax.ShapeDtypeStruct; nothing is
        computed."""
        return split_abstract(lambda: self.build(config))
