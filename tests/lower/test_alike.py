"""Kernels that differ in places of memory only get what each would get alone."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import pytest

from neuronjax.engine_compiler import prices_of
from neuronjax.lower.cores.split import split
from neuronjax.lower.join.join import join
from neuronjax.lower.memory.allocate import allocate
from neuronjax.lower.schedule.interleave import Orders, interleaved
from neuronjax.lower.sync.alike import Outline, at_places, outline
from neuronjax.lower.sync.overlap import Overlaps
from neuronjax.lower.sync.synchronise import Semaphores, synchronise
from neuronjax.lower.tuning import DEFAULT
from neuronjax.program.operand import Buffer
from neuronjax.program.program import Program
from neuronjax.program.text import parse
from neuronjax.program.walk import kernels
from tests.lower.differential import lowered, sent

LAYERS = (
    lambda x, weight: jax.lax.cumsum(jnp.tanh(x @ weight), 1),
    lambda x, weight: jax.lax.cumsum(jnp.tanh(x @ weight), 1),
    lambda x, weight: jax.lax.cumsum(jnp.tanh(x @ weight), 1),
)
"""On a line each: kernels of one line would be one function."""


def _layers(x: jax.Array, weights: list[jax.Array]) -> jax.Array:
    for layer, weight in zip(LAYERS, weights, strict=True):
        x = layer(x, weight)
    return x


@pytest.fixture(scope="module")
def program() -> Program:
    """Layers on both cores, before their instructions are in order."""
    shape = jax.ShapeDtypeStruct((512, 256), jnp.float32)
    weights = [jax.ShapeDtypeStruct((256, 256), jnp.float32)] * len(LAYERS)
    code = sent(jax.jit(_layers).trace(shape, weights))
    return join(split(lowered(code, lnc=2)))


def test_the_order_is_that_of_each_kernel_alone(program: Program) -> None:
    """In every layer and on both cores, though one search serves several."""
    prices = prices_of(program)
    together = interleaved(program, prices)
    changed = 0
    for (_, kernel), (_, new) in zip(kernels(program), kernels(together), strict=True):
        if new != kernel:
            changed += 1
            assert interleaved(dataclasses.replace(program, body=(kernel,)), prices).body == (new,)
    assert changed >= 2 * len(LAYERS)


def test_layers_are_alike(program: Program) -> None:
    """Each has a product on both cores, and all share the sums."""
    keys = [_outline(program, index).key for index, _ in enumerate(kernels(program))]
    assert len(keys) >= 2 * len(LAYERS)
    assert len(set(keys)) <= 3


def test_orders_are_taken_over_by_programs_of_one_target_and_its_prices(program: Program) -> None:
    """What they change is what each program would find alone."""
    prices, orders = prices_of(program), Orders()
    wanted = interleaved(program, prices)
    assert interleaved(program, prices, orders) == wanted
    found = dict(orders.known(prices, program.target, DEFAULT))
    assert found
    assert interleaved(program, prices_of(program), orders) == wanted
    assert orders.known(prices, program.target, DEFAULT) == found
    other = dataclasses.replace(program.target, lnc=1)
    assert orders.known(prices, other, DEFAULT) == {}


def test_semaphores_are_those_of_each_kernel_alone(program: Program) -> None:
    """Also where tiles have other addresses than those of a kernel that is alike."""
    placed = allocate(interleaved(program, prices_of(program)))
    together = synchronise(placed)
    pairs = list(zip(kernels(placed), kernels(together), strict=True))
    for (_, kernel), (_, new) in pairs:
        assert new.semaphores
        alone = dataclasses.replace(placed, body=(kernel,))
        assert synchronise(alone).body == (new,)
    overlap = Overlaps(placed).within(None)
    keys = [outline(kernel, overlap).key for (_, kernel), _ in pairs]
    assert len(keys) > len(set(keys))
    tiles = {key: kernel.buffers for key, ((_, kernel), _) in zip(keys, pairs, strict=True)}
    known = zip(keys, pairs, strict=True)
    assert any(tiles[key] != kernel.buffers for key, ((_, kernel), _) in known)


def test_semaphores_are_taken_over_by_other_programs(program: Program) -> None:
    semaphores = Semaphores()
    placed = allocate(program)
    wanted = synchronise(placed)
    assert synchronise(placed, semaphores) == wanted
    assert synchronise(placed, semaphores) == wanted


CHIP = """\
program "p" target trainium2 lnc 1 {{
  hbm %x : float32[64, 128] argument
  hbm %y : float32[64, 128] result
  kernel "k" {{
    sbuf %s : float32[64, 128] @{first}
    sbuf %t : float32[64, 128] @{second}
    dma_copy dst=%s<0, 64>[0; 1:128] src=%x[0; 1:8192]
    dma_copy dst=%y[0; 1:8192] src=%t<0, 64>[0; 1:128]
  }}
}}
"""


def test_how_much_memory_tiles_share_does_matter() -> None:
    """But not where they lie."""

    def key(first: int, second: int) -> object:
        return _outline(parse(CHIP.format(first=first, second=second))).key

    assert key(0, 512) == key(2048, 4096) == key(4096, 0)
    assert key(0, 256) == key(512, 768)
    assert len({key(0, 512), key(0, 256), key(256, 0), key(0, 0)}) == 4


TEXT = """\
program "p" target trainium2 lnc 1 {{
  hbm %x : float32[64, 128] argument
  hbm %y : float32[64, 128] result
  kernel "k" {{
    sbuf %t : float32[1, 8]
    dma_copy dst=%t[0; 1:8] src=%x[{source}; 1:8]
    dma_copy dst=%x[{target}; 1:8] src=%t[0; 1:8]
    dma_copy dst=%y[{result}; 1:8] src=%t[0; 1:8]
  }}
}}
"""


def _parsed(source: int = 0, target: int = 0, result: int = 0) -> Program:
    return parse(TEXT.format(source=source, target=target, result=result))


def _outline(program: Program, index: int = 0, shared: bool | None = False) -> Outline:
    def same(buffer: Buffer, other: Buffer) -> bool | None:
        return shared

    (_, kernel) = list(kernels(program))[index]
    return outline(kernel, same, same)


def test_where_a_buffer_is_used_first_does_not_matter() -> None:
    """Only how far apart its uses are."""
    first, second = _parsed(source=8), _parsed(source=128, target=120, result=64)
    assert _outline(first).key == _outline(second).key
    assert _outline(first).key != _outline(_parsed(source=16)).key
    ((_, kernel),), ((_, wanted),) = kernels(first), kernels(second)
    assert at_places(kernel.body, _outline(first), _outline(second)) == wanted.body


@pytest.mark.parametrize("shared", [True, None])
def test_where_buffers_that_may_meet_are_used_does_matter(shared: bool | None) -> None:
    first, second = _parsed(result=8), _parsed(result=64)
    assert _outline(first).key == _outline(second).key
    assert _outline(first, shared=shared).key != _outline(second, shared=shared).key
    assert _outline(first, shared=shared).key != _outline(first).key


LOOP = """\
program "p" target trainium2 lnc 1 {{
  hbm %x : float32[{shape}] argument
  hbm %y : float32[64, 128] result
  loop layer in 4 {{
    kernel "k" {{
      sbuf %t : float32[1, 8]
      loop i in 2 {{
        dma_copy dst=%t[0; 1:8] src=%x[{source}8*i{layer}; 1:8]
        dma_copy dst=%x[{target}8*i{last}; 1:8] src=%t[0; 1:8]
        dma_copy dst=%y[8*i; 1:8] src=%t[0; 1:8]
      }}
    }}
  }}
}}
"""


def _in_loop(
    shape: str = "64, 128",
    source: str = "",
    layer: str = "",
    target: str = "128 + ",
    last: str = "",
) -> Program:
    text = LOOP.format(shape=shape, source=source, layer=layer, target=target, last=last)
    return parse(text)


def test_loops_about_a_kernel_and_shapes_of_buffers_do_not_matter() -> None:
    """A layer of a stack is like one that has its weights in a buffer of its own."""
    first = _in_loop()
    second = _in_loop("4, 32, 128", "256 + ", " + 1024*layer", "384 + ", " + 1024*layer")
    assert _outline(first).key == _outline(second).key
    ((_, kernel),), ((_, wanted),) = kernels(first), kernels(second)
    assert at_places(kernel.body, _outline(first), _outline(second)) == wanted.body
    apart = _in_loop("4, 32, 128", "", " + 1024*layer", "128 + ", "")
    assert _outline(first).key != _outline(apart).key
    assert _outline(first, shared=None).key != _outline(second, shared=None).key
