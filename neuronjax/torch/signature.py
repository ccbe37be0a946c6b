"""Arguments of a call of ``forward``, by name."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from neuronjax.errors import ArgumentMismatchError

if TYPE_CHECKING:
    import torch

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def named(
    module: torch.nn.Module, inputs: Sequence[Any], keywords: Mapping[str, Any]
) -> dict[str, Any]:
    """The arguments by the names of ``forward``'s parameters; those of ``**rest`` by their own.

    ArgumentMismatchError: ``forward`` does not take them.
    """
    signature = inspect.signature(module.forward)
    try:
        arguments = signature.bind_partial(*inputs, **keywords).arguments
    except TypeError as error:
        raise ArgumentMismatchError(
            f"{type(module).__name__}.forward{signature} was called with {len(inputs)} positional "
            f"arguments and {', '.join(keywords) or 'no keywords'}: {error}."
        ) from None
    for name, parameter in signature.parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            arguments.update(arguments.pop(name, {}))
    return dict(arguments)


def called(
    module: torch.nn.Module, arguments: Mapping[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """The positional arguments and the keywords that `named` made names of.

    ArgumentMismatchError: ``forward`` needs more.
    """
    positional: list[Any] = []
    keywords = dict(arguments)
    signature = inspect.signature(module.forward)
    missing = [
        name
        for name, parameter in signature.parameters.items()
        if parameter.default is parameter.empty
        and parameter.kind in (*_POSITIONAL, parameter.KEYWORD_ONLY)
        and name not in arguments
    ]
    if missing:
        raise ArgumentMismatchError(
            f"{type(module).__name__}.forward{signature} needs {', '.join(missing)} as well."
        )
    for name, parameter in signature.parameters.items():
        if parameter.kind is parameter.VAR_POSITIONAL:
            positional += keywords.pop(name, ())
        elif parameter.kind not in _POSITIONAL or name not in keywords:
            break
        else:
            positional.append(keywords.pop(name))
    return positional, keywords
