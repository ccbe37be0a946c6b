"""Layouts that the user asks for are those that programs and arrays report, as on ``cpu``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import serialize_executable
from jax.experimental.layout import Format, Layout, with_layout_constraint
from jax.sharding import SingleDeviceSharding

VALUE = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
CUSTOM = Layout(major_to_minor=(2, 0, 1))
ROW_MAJOR = Layout(major_to_minor=(0, 1, 2))

PROGRAMS: dict[str, Callable[[Any], Any]] = {
    "the argument": lambda x: x,
    "transposed": lambda x: x.T,
    "transposed twice": lambda x: x.T.swapaxes(0, 1),
    "changed, then transposed": lambda x: jnp.tanh(x * 2).T,
    "transposed, then changed": lambda x: x.T * 2 + x.T,
    "transposed and not": lambda x: x.T + x.reshape(4, 3, 2),
    "transposed in a function": lambda x: jax.jit(lambda y: y.transpose(1, 2, 0))(x),
    "given back by a function": lambda x: jax.jit(lambda y: y, inline=False)(x.T),
    "reversed": lambda x: x.T[::-1],
    "reshaped": lambda x: x.T.reshape(12, 2),
    "a sum": lambda x: x.sum(0),
    "a scalar": lambda x: x.sum(),
    "a product": lambda x: jnp.einsum("abc,abd->dc", x, x),
    "two results": lambda x: (x.T, x + 1),
    "doubled in a loop": lambda x: jax.lax.fori_loop(0, 3, lambda _, y: y + y, x).T,
}
ARGUMENTS: dict[str, Any] = {"default": None, "auto": Layout.AUTO, "custom": CUSTOM}


def formats(device: jax.Device, fun: Callable[[Any], Any], argument: Any, result: Any) -> Any:
    """What the executable says of its argument and results, and what the results say."""
    sharding = SingleDeviceSharding(device)
    compiled = (
        jax.jit(
            fun,
            in_shardings=Format(argument, sharding),
            out_shardings=Format(result, sharding),
        )
        .lower(jax.ShapeDtypeStruct(VALUE.shape, VALUE.dtype))
        .compile()
    )
    (inputs,), _ = compiled.input_formats
    given = jax.device_put(VALUE, inputs)
    assert given.format.layout == inputs.layout
    results = compiled(given)
    for found, expected in zip(jax.tree.leaves(results), jax.tree.leaves(fun(VALUE)), strict=True):
        np.testing.assert_allclose(found, expected, rtol=16 * np.finfo(np.float32).eps)
    layouts = [entry.layout for entry in jax.tree.leaves(compiled.output_formats)]
    assert layouts == [array.format.layout for array in jax.tree.leaves(results)]
    return [entry.major_to_minor for entry in (inputs.layout, *layouts)]


@pytest.mark.parametrize("argument", ARGUMENTS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_automatic(neuron_devices: list[jax.Device], program: str, argument: str) -> None:
    fun, layout = PROGRAMS[program], ARGUMENTS[argument]
    chosen = formats(neuron_devices[0], fun, layout, Layout.AUTO)
    assert chosen == formats(jax.devices("cpu")[0], fun, layout, Layout.AUTO)


@pytest.mark.parametrize(
    "result", [None, CUSTOM, ROW_MAJOR], ids=["default", "custom", "row-major"]
)
@pytest.mark.parametrize("argument", ARGUMENTS)
@pytest.mark.parametrize("program", ["the argument", "transposed"])
def test_asked_for(
    neuron_devices: list[jax.Device], program: str, argument: str, result: Any
) -> None:
    fun, layout = PROGRAMS[program], ARGUMENTS[argument]
    chosen = formats(neuron_devices[0], fun, layout, result)
    assert chosen == formats(jax.devices("cpu")[0], fun, layout, result)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int4", "bool", "complex64"])
def test_arrays(neuron_devices: list[jax.Device], dtype: str) -> None:
    """An array keeps its layout and its values on the way in and back, and takes another."""
    value = (VALUE % 2).astype(jnp.dtype(dtype))
    x = jax.device_put(value, Format(CUSTOM, SingleDeviceSharding(neuron_devices[0])))
    assert x.format.layout.major_to_minor == CUSTOM.major_to_minor
    np.testing.assert_array_equal(np.asarray(x), value)
    np.testing.assert_array_equal(np.asarray(x.T), value.T)
    back = jax.device_put(x, Format(ROW_MAJOR, SingleDeviceSharding(neuron_devices[0])))
    assert back.format.layout.major_to_minor == ROW_MAJOR.major_to_minor
    np.testing.assert_array_equal(np.asarray(back), value)


def test_constraint(neuron_devices: list[jax.Device]) -> None:
    x = jax.device_put(VALUE, neuron_devices[0])
    y = jax.jit(lambda x: with_layout_constraint(x.T, CUSTOM) * 1)(x)
    np.testing.assert_array_equal(y, VALUE.T)
    compiled = jax.jit(lambda x: with_layout_constraint(x.T, CUSTOM)).lower(x).compile()
    assert compiled.output_formats.layout.major_to_minor == CUSTOM.major_to_minor


def test_tiles_are_refused(neuron_devices: list[jax.Device]) -> None:
    tiled = Layout(major_to_minor=(0, 1, 2), tiling=((8, 128),))
    sharding = SingleDeviceSharding(neuron_devices[0])
    with pytest.raises(jax.errors.JaxRuntimeError, match="without tiling"):
        jax.jit(lambda x: x, in_shardings=Format(tiled, sharding)).lower(VALUE).compile()


def test_serialized(neuron_devices: list[jax.Device]) -> None:
    fun = jax.jit(
        lambda x: x.T,
        in_shardings=Format(CUSTOM, SingleDeviceSharding(neuron_devices[0])),
        out_shardings=Format(Layout.AUTO),
    )
    compiled = fun.lower(VALUE).compile()
    again = serialize_executable.deserialize_and_load(
        *serialize_executable.serialize(compiled),
        backend="neuron",
        execution_devices=neuron_devices[:1],
    )
    result = again(jax.device_put(VALUE, compiled.input_formats[0][0]))
    assert result.format == compiled.output_formats
    np.testing.assert_array_equal(result, VALUE.T)
