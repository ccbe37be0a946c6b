"""Models with the weights of a Hugging Face directory."""

import difflib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
from flax import nnx
from jax.sharding import Mesh, Sharding, SingleDeviceSharding

from models.architecture import Architecture
from models.errors import ConfigError
from models.layers.attention import add_cache_scales
from models.layers.narrow import Storage, make_narrow
from models.padding import pad_parameters
from models.parameters import AxisNames, Parameters, axis_names_of, split_abstract
from models.published.table import PUBLISHED
from models.registry import architecture_of, named_class, text_fields
from models.sharding import RULES, AxisRules, parameter_shardings
from models.weights.directory import STEMS, open_tensors
from models.weights.fields import Fields, read_fields
from models.weights.load import OnTensor, load_parameters
from models.weights.narrow import (
    check_narrow,
    has_cache_scales,
    narrow_kernels,
    read_storage,
    scale_suffix,
    with_narrow_rows,
)
from models.weights.save import SHARD_BYTES, save_checkpoint


class Described(NamedTuple):
    """A config.json, and the architecture and config it describes."""

    architecture: Architecture
    config: Any
    fields: Fields

    def axis_names(self) -> AxisNames:
        """The axis names of every parameter."""
        return axis_names_of(*self.architecture.abstract(self.config))


class Pretrained(NamedTuple):
    """A model and its weights: `models.parameters.merge(graph, parameters)` is the module."""

    architecture: Architecture
    config: Any
    fields: Fields
    graph: nnx.GraphDef[Any]
    parameters: Parameters

    def axis_names(self) -> AxisNames:
        """The axis names of every parameter."""
        return axis_names_of(self.graph, self.parameters)


def describe(
    path: Path,
    *,
    dtype: str | None = None,
    param_dtype: str | None = None,
    tasks: Sequence[str] = (),
) -> Described:
    """The architecture and config of a directory, of a config.json, or of a published name such as
    "Qwen/Qwen3-8B" (a key of models.published.table.PUBLISHED) if there is no such directory.

    `dtype` is the dtype of activations, `param_dtype` that of the weights in memory; both default
    to the file's. `tasks` as in `architecture_of`. Raises ConfigError if the file cannot be read or
    asks for something that is not supported.
    """
    name = path.as_posix()
    if path.exists():
        fields = read_fields(path)
    elif name in PUBLISHED:
        fields = Fields(PUBLISHED[name], name)
    else:
        raise ConfigError(_explain_unknown(name))
    return describe_fields(fields, dtype=dtype, param_dtype=param_dtype, tasks=tasks)


def _explain_unknown(name: str) -> str:
    """The sentence about a name that is neither here nor published: what may be meant by it."""
    models = [known for known in PUBLISHED if known.startswith(f"{name}/")]
    if models:
        return f"{name} is a pipeline of several models: name one of {', '.join(models)}."
    near = difflib.get_close_matches(name, PUBLISHED, n=3, cutoff=0.8)
    meant = f" Did you mean {' or '.join(near)}?" if near else ""
    return f"{name} is not a directory, a file or a published name.{meant}"


def config(name: str, *, dtype: str | None = None) -> Any:
    """The config of a well-known checkpoint by its published name, without any file.

    Raises ConfigError, which lists the names, if the name is unknown.
    """
    if name not in PUBLISHED:
        raise ConfigError(f"{name!r} is unknown; choose one of {', '.join(PUBLISHED)}")
    return describe_fields(Fields(PUBLISHED[name], name), dtype=dtype, param_dtype=dtype).config


def describe_fields(
    fields: Fields,
    *,
    dtype: str | None = None,
    param_dtype: str | None = None,
    tasks: Sequence[str] = (),
) -> Described:
    """The architecture and config that these fields describe."""
    fields = text_fields(fields)
    architecture = architecture_of(fields, tasks)
    config = architecture.config_of(fields)
    config = replace(
        config, dtype=dtype or config.dtype, param_dtype=param_dtype or config.param_dtype
    )
    return Described(architecture, config, fields)


def load(
    directory: Path,
    mesh: Mesh | None = None,
    *,
    dtype: str | None = None,
    param_dtype: str | None = None,
    tasks: Sequence[str] = (),
    rules: AxisRules = RULES,
    pad: bool = False,
    on_tensor: OnTensor | None = None,
    on_plan: Callable[[int], None] | None = None,
) -> Pretrained:
    """Loads the model in a directory, with its weights sharded over the mesh or on the first
    device.

    With `pad`, heads and feed-forward columns that the mesh does not divide are padded with zeros;
    the config then has the larger sizes where caches do. Do not save such a model. `tasks` as in
    `architecture_of`: where the model is of another class than config.json names, the tensors of
    other heads are left out.
    `on_plan` is called once with the bytes of all parameters, `on_tensor` with the bytes of each
    tensor that was read. Raises ConfigError, ShardingError or WeightsError; see there.
    """
    described = describe(directory, dtype=dtype, param_dtype=param_dtype, tasks=tasks)
    tensors = {**open_tensors(directory), **described.architecture.beside(directory)}
    config = described.architecture.refine(described.config, tensors)
    described = described._replace(config=config)
    table = described.architecture.keys(config)
    if described.architecture.name != named_class(described.fields):
        table = replace(table, spares_heads=True)
    storage = read_storage(described.fields)
    if storage is None:
        graph, abstract = described.architecture.abstract(config)
    else:
        suffix = scale_suffix(described.fields)
        paths = narrow_kernels(table, tensors, suffix)
        check_narrow(described.fields, paths)
        graph, abstract = abstract_narrow(
            described, storage, paths, cache_scales=has_cache_scales(described.fields)
        )
        table = with_narrow_rows(table, suffix)
    stored = abstract
    if pad and mesh is not None and storage is None:
        described, graph, abstract = padded(described, dict(mesh.shape))
    placed = shardings(mesh, abstract, axis_names_of(graph, abstract), rules)
    if on_plan is not None:
        on_plan(sum(leaf.size * leaf.dtype.itemsize for leaf in abstract.values()))
    parameters = load_parameters(tensors, table, stored, placed, on_tensor, padded=abstract)
    return Pretrained(*described, graph, parameters)


def padded(
    described: Described, mesh: Mapping[str, int]
) -> tuple[Described, nnx.GraphDef[Any], Parameters]:
    """A model with sizes that a mesh of these axes divides: its description, structure and
    parameters as jax.ShapeDtypeStruct."""
    architecture = described.architecture
    described = described._replace(config=architecture.padded(described.config, mesh))
    graph, abstract = architecture.abstract(described.config)
    return described, graph, pad_parameters(abstract, axis_names_of(graph, abstract), mesh)


def abstract_narrow(
    described: Described, storage: Storage, kernels: Collection[str], *, cache_scales: bool
) -> tuple[nnx.GraphDef[Any], Parameters]:
    """The model of `Architecture.abstract`, with narrow kernels at these paths and, if asked for,
    with scales for a narrow key/value cache."""

    def build() -> nnx.Module:
        model = described.architecture.build(described.config)
        make_narrow(model, storage, kernels)
        if cache_scales:
            add_cache_scales(model)
        return model

    return split_abstract(build)


def save(directory: Path, pretrained: Pretrained, *, shard_bytes: int = SHARD_BYTES) -> None:
    """Writes config.json and weights in the architecture's usual layout; overwrites nothing.

    Raises WeightsError if a file already exists or cannot be written.
    """
    architecture = pretrained.architecture
    fields = {
        **pretrained.fields.values,
        "architectures": [architecture.name],
        "model_type": architecture.model_type,
        "dtype": pretrained.config.param_dtype,
    }
    if architecture.library == "diffusers":  # which takes no other fields than its own
        fields = {**pretrained.fields.values, "_class_name": architecture.name}
        fields.pop("dtype", None)
    save_checkpoint(
        directory,
        fields,
        with_narrow_rows(
            pretrained.architecture.keys(pretrained.config), scale_suffix(pretrained.fields)
        ),
        pretrained.parameters,
        shard_bytes=shard_bytes,
        stem=STEMS[architecture.library],
    )


def shardings(
    mesh: Mesh | None, abstract: Parameters, axes: AxisNames, rules: AxisRules = RULES
) -> Mapping[str, Sharding]:
    """The sharding of each parameter: split over the mesh, or whole on the first device."""
    if mesh is None:
        return dict.fromkeys(abstract, SingleDeviceSharding(jax.devices()[0]))
    return parameter_shardings(mesh, abstract, axes, rules)
