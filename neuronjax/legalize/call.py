"""A custom call as input of its meaning: types and configuration, with checks on both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from neuronjax.errors import UnsupportedProgramError
from neuronjax.hlo.module import TensorSpec, tensor_spec
from neuronjax.jaxlib_api.mlir import ir
from neuronjax.legalize.policy import Policy

Function = Callable[..., jax.Array | tuple[jax.Array, ...]]
"""Arrays of the call's operand types -> its result, or a tuple of its results."""

_CONFIG_NAMES = ("backend_config", "mhlo.backend_config")
"""Attributes with a call's configuration; some of JAX's paths put a typed one in the second."""


@dataclass(frozen=True)
class Call:
    """Types, configuration and context of a custom call; equal calls mean the same."""

    target: str
    operands: tuple[TensorSpec, ...]
    results: tuple[TensorSpec, ...]
    config: str
    """Text of ``backend_config`` without the quotes that some frameworks put around it."""
    attributes: str
    """A typed configuration as text, which the Neuron compiler does not read; normally empty."""
    policy: Policy
    """The numerics and legality that the program is compiled with."""
    cores: int
    """How many cores run the program together."""

    def expect_operands(self, *names: str) -> tuple[TensorSpec, ...]:
        """The operands' types. Raises ``UnsupportedProgramError`` unless there is one per name."""
        if len(self.operands) != len(names):
            raise UnsupportedProgramError(
                f"has {len(self.operands)} operands where it takes {len(names)}: {', '.join(names)}"
            )
        return self.operands

    def expect_floats(self) -> None:
        """Raises ``UnsupportedProgramError`` unless all operands are real floats."""
        for spec in self.operands:
            if not jnp.issubdtype(spec.dtype, jnp.floating):
                raise UnsupportedProgramError(
                    f"has an operand of type {spec.dtype.name}; convert it to float32, bfloat16 "
                    "or float16"
                )

    def expect_same_shape(self) -> None:
        """Raises ``UnsupportedProgramError`` unless all operands have one shape."""
        shapes = {spec.shape for spec in self.operands}
        if len(shapes) > 1:
            raise UnsupportedProgramError(
                f"has operands of shapes {', '.join(str(s.shape) for s in self.operands)}; they "
                "must be the same"
            )

    def whole_number(self, meaning: str) -> int:
        """The configuration as a whole number, such as ``"2"``. Raises if it is not one."""
        if not (self.config.isascii() and self.config.isdecimal()):
            raise self.bad_config(f"{meaning} as a decimal number")
        return int(self.config)

    def axis(self, rank: int) -> int:
        """The configuration as a dimension of the first operand, which has that rank."""
        axis = self.whole_number("a dimension of the operand")
        if axis >= rank:
            raise self.bad_config(f"a dimension of the operand, 0 to {rank - 1},")
        return axis

    def bad_config(self, wanted: str) -> UnsupportedProgramError:
        """The error for a configuration that is not as required."""
        given = f"the attributes {self.attributes}" if self.attributes else repr(self.config)
        return UnsupportedProgramError(
            f"needs {wanted} in backend_config and has {given}; from JAX pass it as a string: "
            "jax.ffi.ffi_call(…, custom_call_api_version=2, legacy_backend_config=…)"
        )


def read(op: ir.Operation, policy: Policy, cores: int) -> Call:
    """The call of a custom-call op. Raises ``UnsupportedProgramError`` for unknown types."""
    config, attributes = _configuration(op)
    return Call(
        target=ir.StringAttr(op.attributes["call_target_name"]).value,
        operands=tuple(tensor_spec(value.type) for value in op.operands),
        results=tuple(tensor_spec(value.type) for value in op.results),
        config=config,
        attributes=attributes,
        policy=policy,
        cores=cores,
    )


def _configuration(op: ir.Operation) -> tuple[str, str]:
    """A call's configuration as (text, typed attributes as text)."""
    for name in _CONFIG_NAMES:
        attribute = op.attributes.get(name, None)
        if isinstance(attribute, ir.StringAttr) and attribute.value:
            return attribute.value.strip('"'), ""
        if isinstance(attribute, ir.DictAttr) and len(attribute):
            return "", str(attribute)
    return "", ""


def computing_type(dtype: np.dtype) -> np.dtype:
    """The type that the engines compute in: FP32 for all real numbers, except that FP64 stays."""
    return np.dtype(np.float64 if dtype == np.float64 else np.float32)


def wide(x: jax.Array) -> jax.Array:
    """``x`` in the type that the engines compute in."""
    return x.astype(computing_type(x.dtype))


def in_result_types(function: Function, results: Sequence[TensorSpec]) -> Function:
    """``function`` with its results rounded once, to the types of ``results``.

    Raises (when called):
      UnsupportedProgramError: a result has another shape than the call declares.
    """

    def rounded(*operands: jax.Array) -> tuple[jax.Array, ...]:
        values = function(*operands)
        values = values if isinstance(values, tuple) else (values,)
        shapes = [value.shape for value in values]
        declared = [spec.shape for spec in results]
        if shapes != declared:
            raise UnsupportedProgramError(
                f"declares results of shapes {declared} where its operands and backend_config "
                f"give {shapes}"
            )
        return tuple(value.astype(spec.dtype) for value, spec in zip(values, results, strict=True))

    return rounded
