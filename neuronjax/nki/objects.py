"""Objects that kernels make and take."""

from __future__ import annotations

import abc
import dataclasses
import inspect
from typing import Any


class _Attributes(abc.ABCMeta):
    """The class of such classes. Fields of a dataclass that a call leaves out are None, as kernels
    may set them later; class attributes without annotation are set by keyword."""

    def __call__(cls, *values: object, **named: object) -> Any:
        signature = inspect.signature(cls.__init__)  # type: ignore[misc]
        plain = {
            name: named.pop(name)
            for name in _plain_attributes(cls)
            if name in named and name not in signature.parameters
        }
        if dataclasses.is_dataclass(cls):
            given = signature.bind_partial(None, *values, **named).arguments
            fields = {field.name for field in dataclasses.fields(cls)}
            for name, parameter in signature.parameters.items():
                has_default = parameter.default is not parameter.empty
                if name in fields and not has_default and name not in given:
                    named[name] = None
        made = super().__call__(*values, **named)
        for name, value in plain.items():
            setattr(made, name, value)
        return made


def _plain_attributes(cls: type) -> list[str]:
    """Names of attributes that a class gives values and no annotations."""
    return [
        name
        for kind in cls.__mro__[: cls.__mro__.index(NKIObject)]
        for name, value in vars(kind).items()
        if not (name.startswith("_") or callable(value) or hasattr(value, "__get__"))
    ]


class NKIObject(metaclass=_Attributes):
    """The base of classes whose objects are passed to kernels; here any object may be.

    A class without `__init__` takes the attributes that it annotates, in their order; those that
    are not given have the class's value, or None.
    """

    def __init__(self, *values: object, **named: object) -> None:
        names = [
            name for kind in reversed(type(self).__mro__) for name in inspect.get_annotations(kind)
        ]
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        parameters = [
            inspect.Parameter(name, kind, default=getattr(type(self), name, None))
            for name in dict.fromkeys(names)
        ]
        bound = inspect.Signature(parameters).bind(*values, **named)
        bound.apply_defaults()
        for name, value in bound.arguments.items():
            setattr(self, name, value)
