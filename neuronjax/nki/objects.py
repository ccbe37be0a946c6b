"""Objects that kernels make and take."""

from __future__ import annotations

import abc
import dataclasses
import inspect
from typing import Any


class _Attributes(abc.ABCMeta):
    """The class of such classes: fields of a dataclass that a call leaves out are None, as kernels
    may set them later."""

    def __call__(cls, *values: Any, **named: Any) -> Any:
        if dataclasses.is_dataclass(cls):
            given = inspect.signature(cls.__init__).bind_partial(None, *values, **named).arguments
            for field in dataclasses.fields(cls):
                defaults = (field.default, field.default_factory)
                has_default = any(value is not dataclasses.MISSING for value in defaults)
                if field.init and not has_default and field.name not in given:
                    named[field.name] = None
        return super().__call__(*values, **named)


class NKIObject(metaclass=_Attributes):
    """The base of classes whose objects are passed to kernels; here any object may be.

    A class without `__init__` takes the attributes that it annotates, in their order; those that
    are not given have the class's value, or None.
    """

    def __init__(self, *values: Any, **named: Any) -> None:
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
