"""The paths of modules as scopes of JAX's operations."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import jax
import torch

from neuronjax.hlo.location import module_scope


class Scopes:
    """The modules that are being called, outermost first."""

    def __init__(self, root: torch.nn.Module) -> None:
        self._root = type(root).__name__
        self._open: list[tuple[str, Any]] = []

    @property
    def path(self) -> str:
        """The innermost module, as ``model.layers.0.mlp``; the root's class in its own code."""
        return (self._open[-1][0] if self._open else "") or self._root

    def enter(self, path: str, *_: object) -> None:
        """Begins the scope of a module, named by its path within the module that calls it."""
        around = self._open[-1][0] if self._open else ""
        name = path.removeprefix(f"{around}.") if around else path
        scope = jax.named_scope(module_scope(name or self._root))
        scope.__enter__()
        self._open.append((path, scope))

    def leave(self, path: str, *_: object) -> None:
        """Ends the scope of a module, and of those within that an exception ended."""
        while self._open:
            ended, scope = self._open.pop()
            scope.__exit__(None, None, None)
            if ended == path:
                return


@contextlib.contextmanager
def module_scopes(module: torch.nn.Module) -> Iterator[Scopes]:
    """Every call of a module within `module` is a scope until the block ends."""
    scopes = Scopes(module)
    hooks = []
    try:
        for path, part in module.named_modules():
            hooks.append(part.register_forward_pre_hook(functools.partial(scopes.enter, path)))
            hooks.append(part.register_forward_hook(functools.partial(scopes.leave, path)))
        yield scopes
    finally:
        scopes.leave("")
        for hook in hooks:
            hook.remove()
