"""A cell of a notebook that is interrupted, in a kernel as Jupyter starts it."""

from __future__ import annotations

import queue
import time
from collections.abc import Iterator
from typing import Any

import pytest
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import start_new_kernel

SETUP = """
import jax, jax.numpy as jnp
def step(trips):
    return jax.jit(lambda x: jax.lax.fori_loop(0, trips, lambda i, v: jnp.tanh(v @ v), x))
values, short, long = jnp.ones((256, 256)), step(60), step(10**6)
"""
STEPS = """
while True:
    values = short(values)
"""
ANSWER = "print(int(jax.jit(lambda x: x + 1)(41)))"


class Notebook:
    """A kernel, and the texts and errors of the cells that it has run."""

    def __init__(self, client: BlockingKernelClient, manager: Any) -> None:
        self._client, self._manager = client, manager

    def run(self, code: str, interrupt_after: float | None = None, timeout: float = 60) -> str:
        """What a cell prints, and the name of its error; interrupted after as many seconds."""
        begin, texts = time.monotonic(), list[str]()
        cell = self._client.execute(code)
        while (seconds := time.monotonic() - begin) < timeout:
            if interrupt_after is not None and seconds > interrupt_after:
                interrupt_after = None
                self._manager.interrupt_kernel()
            try:
                message = self._client.get_iopub_msg(timeout=0.1)
            except queue.Empty:
                continue
            if message["parent_header"].get("msg_id") != cell:
                continue
            content = message["content"]
            texts += [content[key] for key in ("text", "ename") if key in content]
            if content.get("execution_state") == "idle":
                return "".join(texts)
        raise AssertionError(f"the cell goes on after {timeout} s; so far: {texts}")


@pytest.fixture
def notebook() -> Iterator[Notebook]:
    manager, client = start_new_kernel(kernel_name="python3")
    try:
        notebook = Notebook(client, manager)
        notebook.run(SETUP)
        yield notebook
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def test_the_cell_after_an_interrupted_one(notebook: Notebook) -> None:
    """Interrupts are raised in the cell, however short the time between two calls; several times,
    as the kernel sets a handler of its own before each cell."""
    for _ in range(2):
        assert notebook.run(STEPS, interrupt_after=1.5).endswith("KeyboardInterrupt")
        assert "42\n" in notebook.run(ANSWER)


@pytest.mark.slow
def test_a_cell_that_waits_for_an_interrupted_one_tells_so(notebook: Notebook) -> None:
    printed = notebook.run("long(values).block_until_ready()", interrupt_after=1.5)
    assert printed == "KeyboardInterrupt"
    assert "a run of an interrupted cell still goes on" in notebook.run("pass")
    assert notebook.run("pass") == ""
