"""LoRA: low-rank adapters beside frozen weights, by the names that PEFT has for the layers."""

import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from launch.errors import ModelError
from models.layers.linear import Linear
from models.layers.low_rank import LowRank
from models.parameters import Parameters, merge
from models.pretrained import Described
from models.weights.plan import Group, writing_plan

ALL_LINEAR = "all-linear"
PARAM_DTYPE = "float32"  # of adapters: small updates are lost in narrower types

# The layers that a task adds to a pretrained model, by PEFT's names: they are trained whole.
HEADS: Mapping[str, tuple[str, ...]] = {
    "text-classification": ("classifier",),
    "token-classification": ("classifier",),
    "multiple-choice": ("classifier",),
    "image-classification": ("classifier",),
    "question-answering": ("qa_outputs",),
}
LISTED = 12  # names in a message


@dataclass(frozen=True, kw_only=True)
class LoRA:
    """What is adapted, and how. Hu et al., "LoRA", 2021."""

    rank: int = 16
    alpha: float = 32.0  # what an adapter adds is scaled by alpha / rank
    dropout: float = 0.05  # of the adapters' inputs, in training
    targets: str = ALL_LINEAR  # names of layers such as q_proj,v_proj
    rslora: bool = False  # the scale is alpha / sqrt(rank): Kalajdzievski, 2023

    def scale(self, rank: int, alpha: float) -> float:
        """The scale of an adapter with a rank and an alpha of its own."""
        return alpha / (math.sqrt(rank) if self.rslora else rank)


@dataclass(frozen=True)
class Layer:
    """A linear layer as a checkpoint stores it: one map of the model, or several in one tensor."""

    name: str  # such as model.layers.0.self_attn.q_proj
    paths: tuple[str, ...]  # such as blocks.0.attention.query
    group: Group[str]  # of the kernels


@dataclass(frozen=True)
class Adapter:
    """An adapter to be, of every map of a layer."""

    layer: Layer
    rank: int  # of each map
    scale: float

    @property
    def stored_rank(self) -> int:
        """The rank in a checkpoint, which knows the layer as a whole."""
        return self.rank * len(self.layer.paths)


@dataclass(frozen=True)
class Adapted:
    """A model with adapters.

    Attributes:
      base: the model without them.
      model: the model whose parameters are those of the base and the adapters'.
      adapters: in the order of the checkpoint's layers.
      heads: names of layers that are trained whole.
      lora: what was asked for.
    """

    base: Described
    model: Described
    adapters: tuple[Adapter, ...]
    heads: tuple[str, ...]
    lora: LoRA

    def trained(self) -> frozenset[str]:
        """The paths of the parameters that an optimizer may change."""
        added = self.parameters().keys() - shapes_of(self.base).keys()
        return frozenset(added) | frozenset(p for g in self.head_groups() for p in g.parameters)

    def parameters(self) -> Parameters:
        """All parameters, as jax.ShapeDtypeStruct."""
        return shapes_of(self.model)

    def head_groups(self) -> list[Group[str]]:
        """The tensors of the layers that are trained whole."""
        return [
            group
            for group in _groups(self.base)
            if any(_is_within(key, self.heads) for key in group.tensors[0])
        ]


def adapt(model: Described, lora: LoRA) -> Adapted:
    """Adapters beside the layers that `lora` names, and the task's own layers trained whole.

    Raises ModelError if a name belongs to no linear layer, with those there are.
    """
    heads = HEADS.get(model.architecture.task, ())
    layers = [layer for layer in linear_layers(model) if not _is_within(layer.name + ".", heads)]
    chosen = _choose_layers(layers, lora.targets, model.architecture.name)
    scale = lora.scale(lora.rank, lora.alpha)
    return with_adapters(model, [Adapter(layer, lora.rank, scale) for layer in chosen], heads, lora)


def with_adapters(
    base: Described, adapters: Sequence[Adapter], heads: tuple[str, ...], lora: LoRA
) -> Adapted:
    """The model with these adapters, each split over a mesh as the kernel beside it."""
    by_path = {path: adapter for adapter in adapters for path in adapter.layer.paths}
    architecture = base.architecture

    def build(config: Any, *, rngs: nnx.Rngs) -> nnx.Module:
        module = architecture.model(config, rngs=rngs)
        for path, linear in linear_maps(module):
            if path in by_path:
                linear.lora = _low_rank(linear, by_path[path], lora.dropout, rngs)
        return module

    model = base._replace(architecture=replace(architecture, model=build))
    return Adapted(base, model, tuple(adapters), heads, lora)


def with_recorded_adapters(base: Described, recorded: Sequence[tuple[str, int, float]]) -> Adapted:
    """The model with adapters of these layers, ranks and scales.

    Raises ModelError for a layer that it does not have.
    """
    layers = {layer.name: layer for layer in linear_layers(base)}
    absent = [name for name, _, _ in recorded if name not in layers]
    if absent:
        raise ModelError(
            f"the adapters include {', '.join(absent[:LISTED])}, which {base.architecture.name} "
            "does not have. They belong to another model."
        )
    adapters = [Adapter(layers[name], rank, scale) for name, rank, scale in recorded]
    return with_adapters(base, adapters, HEADS.get(base.architecture.task, ()), LoRA())


def merged(adapted: Adapted, parameters: Mapping[str, jax.Array]) -> Parameters:
    """The base's parameters with the adapters' products added, rounded once to their dtype."""
    graph, _ = adapted.model.architecture.abstract(adapted.model.config)
    kernels = {}
    for path, linear in linear_maps(merge(graph, parameters)):
        if isinstance(linear.lora, LowRank):
            kernel = linear.kernel[...]
            product = linear.lora.product()
            kernels[f"{path}.kernel"] = (kernel.astype(product.dtype) + product).astype(
                kernel.dtype
            )
    return {name: kernels.get(name, parameters[name]) for name in shapes_of(adapted.base)}


def linear_layers(model: Described) -> list[Layer]:
    """Every linear layer by the name under which checkpoints store it."""
    graph = nnx.eval_shape(lambda: model.architecture.build(model.config))
    kernels = {f"{path}.kernel" for path, _ in linear_maps(graph)}
    layers = []
    for group in _groups(model):
        if kernels.issuperset(group.parameters):
            paths = tuple(name.removesuffix(".kernel") for name in group.parameters)
            layers.append(Layer(group.tensors[0][0].removesuffix(".weight"), paths, group))
    return layers


def ends_with(name: str, target: str) -> bool:
    """Whether PEFT would take a layer of this name for the target."""
    return name == target or name.endswith(f".{target}")


def shapes_of(model: Described) -> Parameters:
    """The parameters of a model, as jax.ShapeDtypeStruct."""
    return model.architecture.abstract(model.config)[1]


def _groups(model: Described) -> list[Group[str]]:
    shapes = {name: tuple(leaf.shape) for name, leaf in shapes_of(model).items()}
    return writing_plan(model.architecture.keys(model.config), shapes)


def linear_maps(model: nnx.Module) -> Iterator[tuple[str, Linear]]:
    """(path, map) of all linear maps of a model."""
    for path, module in nnx.iter_modules(model):
        if isinstance(module, Linear):
            yield ".".join(map(str, path)), module


def _low_rank(linear: Linear, adapter: Adapter, dropout: float, rngs: nnx.Rngs) -> LowRank:
    return LowRank(
        *linear.axes(),
        rank=adapter.rank,
        scale=adapter.scale,
        dropout=dropout,
        param_dtype=jnp.dtype(PARAM_DTYPE),
        rngs=rngs,
    )


def _choose_layers(layers: Sequence[Layer], targets: str, architecture: str) -> list[Layer]:
    names = [name.strip() for name in targets.split(",") if name.strip()]
    if names == [ALL_LINEAR]:
        chosen = list(layers)
    else:
        absent = [
            name for name in names if not any(ends_with(layer.name, name) for layer in layers)
        ]
        if absent or not names:
            raise ModelError(_describe_unknown(targets, absent, layers, architecture))
        chosen = [layer for layer in layers if any(ends_with(layer.name, name) for name in names)]
    if not chosen:
        raise ModelError(f"{architecture} has no linear layers that LoRA can adapt")
    return chosen


def _describe_unknown(
    targets: str, absent: Collection[str], layers: Sequence[Layer], architecture: str
) -> str:
    there = sorted({layer.name.rpartition(".")[2] for layer in layers})
    return (
        f"--target_modules={targets}: {architecture} has no linear layer called "
        f"{', '.join(absent) or 'nothing'}. It has {', '.join(there[:LISTED])}; {ALL_LINEAR} "
        "selects them all."
    )


def _is_within(key: str, modules: Collection[str]) -> bool:
    """Whether a tensor's key lies in one of the modules."""
    return any(re.match(rf"(.*\.)?{re.escape(module)}\.", key) for module in modules)
