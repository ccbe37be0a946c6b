"""The places of a module's tensors, which others take for one call."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from neuronjax.torch.state import State


@dataclass(frozen=True)
class Site:
    """A place in a module where a tensor is."""

    holder: Any
    """The dict or list that has it: of parameters, of buffers, of attributes, or one of these."""
    name: Any
    """The tensor's key or index there."""
    path: str
    """The path of the first place of this tensor, as a tied one has several."""
    tensor: torch.Tensor
    is_parameter: bool

    @property
    def is_trained(self) -> bool:
        return self.is_parameter and self.tensor.requires_grad


def sites_of(module: torch.nn.Module) -> list[Site]:
    """All places of tensors in a module, tables that are plain attributes included."""
    first: dict[int, tuple[str, bool]] = {}
    sites = []
    for holder, path, is_parameter in _holders(module):
        for name, tensor in _items(holder):
            if isinstance(tensor, torch.Tensor):
                known = (f"{path}{name}", is_parameter)
                place, is_first_parameter = first.setdefault(id(tensor), known)
                sites.append(Site(holder, name, place, tensor, is_first_parameter))
    return sites


def state_of(module: torch.nn.Module, convert: Callable[[torch.Tensor], Any]) -> State:
    """The module's tensors by path, each as `convert` makes it of a tensor."""
    tensors = {site.path: site for site in sites_of(module)}
    made = {path: convert(site.tensor) for path, site in tensors.items()}
    return State(
        {path: value for path, value in made.items() if tensors[path].is_trained},
        {path: value for path, value in made.items() if not tensors[path].is_trained},
    )


@contextlib.contextmanager
def in_place(module: torch.nn.Module, tensors: Mapping[str, Any]) -> Iterator[Callable[[], State]]:
    """Puts tensors, by path, in the places of a module's own until the block ends.

    The module is then as it was before, whatever the block did to its attributes. Yields a function
    that returns the tensors which are in these places when it is called.
    """
    sites = sites_of(module)
    held = [(holder, type(holder)(holder)) for holder, _, _ in _holders(module)]
    first = {site.path: site for site in reversed(sites)}

    def now() -> State:
        return State(
            {path: tensors[path] for path, site in first.items() if site.is_trained},
            {
                path: site.holder.get(site.name) if isinstance(site.holder, dict) else tensors[path]
                for path, site in first.items()
                if not site.is_trained
            },
        )

    try:
        for site in sites:
            site.holder[site.name] = tensors[site.path]
        yield now
    finally:
        for holder, before in held:
            holder.clear()
            holder.extend(before) if isinstance(holder, list) else holder.update(before)


def _holders(module: torch.nn.Module) -> Iterator[tuple[Any, str, bool]]:
    """The dicts and lists with a module's tensors, the prefix of paths there, and whether they hold
    parameters."""
    for path, part in module.named_modules():
        prefix = f"{path}." if path else ""
        yield part._parameters, prefix, True
        yield part._buffers, prefix, False
        yield vars(part), prefix, False
        for name, value in vars(part).items():
            if type(value) in (list, dict) and name not in _OF_TORCH:
                yield from _within(value, f"{prefix}{name}.")


_OF_TORCH = frozenset(vars(torch.nn.Module()))
"""Attributes that every module has, whose tensors are listed otherwise."""


def _within(holder: Any, prefix: str) -> Iterator[tuple[Any, str, bool]]:
    yield holder, prefix, False
    for name, value in _items(holder):
        if type(value) in (list, dict):
            yield from _within(value, f"{prefix}{name}.")


def _items(holder: Any) -> list[tuple[Any, Any]]:
    return [*(holder.items() if isinstance(holder, dict) else enumerate(holder))]
