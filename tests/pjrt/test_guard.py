"""No exception reaches C: whatever a call raises, JAX gets an error with a code and a text."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuronjax.errors import CompileError, NeuronError, UnsupportedProgramError
from neuronjax.pjrt import abi
from neuronjax.pjrt.guard import describe, guarded
from neuronjax.pjrt.native_ir import FROM_CODE
from neuronjax.pjrt.plugin_state import Plugin
from neuronjax.pjrt.table import Table
from neuronjax.pjrt.values import offset
from tests.conftest import RunPython
from tests.pjrt.conftest import STATUS, CallError, Calls


class Mute(Exception):
    """Cannot say what it is."""

    def __str__(self) -> str:
        raise self.args[0]


class Unlisted(NeuronError):
    status = "NO_SUCH_STATUS"


KINDS: dict[str, Callable[[str], BaseException]] = {
    "Exception": Exception,
    "UnicodeDecodeError": lambda text: UnicodeDecodeError("utf-8", b"\xff", 0, 1, text),
    "OSError": lambda text: OSError(2, text, text),
    "KeyError": KeyError,
    "NeuronError": NeuronError,
    "a status nobody knows": Unlisted,
    "MemoryError": MemoryError,
    "KeyboardInterrupt": KeyboardInterrupt,
    "SystemExit": SystemExit,
    "GeneratorExit": GeneratorExit,
    "StopIteration": StopIteration,
    "a group": lambda text: BaseExceptionGroup(text, [KeyboardInterrupt(text)]),
    "without a text": lambda text: Mute(RuntimeError(text)),
    "without memory for a text": lambda text: Mute(MemoryError()),
    "interrupted while it is asked": lambda text: Mute(KeyboardInterrupt()),
}

CALLBACKS = (*abi.CALLS, *FROM_CODE)

TEXTS = st.text(st.characters(exclude_categories=()), max_size=40)
"""Lone surrogates and zeros too."""


class Raising:
    """A table all of whose calls raise ``error``, once ``error`` is set."""

    def __init__(self, native: bool) -> None:
        self.error: BaseException = Exception()
        self.table = Table(Plugin(), native, {name: self._call(name) for name in CALLBACKS})
        sound = Calls(Table(Plugin(), native_stubs=False))
        sound.plugin.handles = self.table.plugin.handles
        sound.plugin.last_error = self.table.plugin.last_error
        self.sound = sound
        self.record = (ctypes.c_uint64 * 16)()
        """An object of which every flag is off, and the last shard where one is to end."""

    def _call(self, name: str) -> Callable[[Plugin, Any], None]:
        def refuse(plugin: Plugin, args: Any) -> None:
            raise self.error

        return refuse

    def call(self, name: str) -> CallError | None:
        """What the call through the table's pointer reports."""
        live = (name == "Buffer_Destroy") << 8 * offset("live")
        self.record[:] = [live, *[0] * 15]
        arguments = abi.args(name)()
        fields = [field for field, _ in arguments._fields_]
        setattr(arguments, fields[2], ctypes.addressof(self.record)) if len(fields) > 2 else None
        error = abi.CALLBACK(getattr(self.table.api, name))(ctypes.addressof(arguments))
        return self.sound.error(error) if error else None


@pytest.fixture(scope="module", params=[True, False], ids=["native", "python"])
def raising(request: pytest.FixtureRequest) -> Raising:
    return Raising(request.param)


ANSWERED_WITHOUT_PYTHON = {
    "Buffer_Device", "Buffer_Memory", "Buffer_ElementType", "Buffer_Dimensions",
    "Buffer_UnpaddedDimensions", "Buffer_IsDeleted", "Memory_Kind", "Executable_NumReplicas",
    "Executable_NumPartitions", "Executable_NumOutputs", "Error_Message", "Error_GetCode",
    "Buffer_IsOnCpu", "Buffer_DynamicDimensionIndices",
}  # fmt: skip


@pytest.mark.parametrize("name", abi.CALLS)
def test_every_slot_reports_what_was_raised(name: str, raising: Raising) -> None:
    raising.error = ValueError("an error of its own")
    reported = raising.call(name)
    if reported is None:
        assert name in ANSWERED_WITHOUT_PYTHON
    else:
        assert "an error of its own" in reported.message


@given(kind=st.sampled_from(sorted(KINDS)), text=TEXTS, name=st.sampled_from(sorted(abi.CALLS)))
def test_any_exception_with_any_text_becomes_an_error(
    raising: Raising, kind: str, text: str, name: str
) -> None:
    raising.error = KINDS[kind](text)
    reported = raising.call(name)
    if reported is None:
        assert name in ANSWERED_WITHOUT_PYTHON
        return
    assert reported.status in STATUS.values()
    assert reported.message
    if kind == "Exception" and text and not abi_status(text):
        shown = text.encode(errors="backslashreplace").decode()
        assert reported.message.startswith(f"Exception: {shown} (at {__file__}:")


def abi_status(text: str) -> bool:
    return any(text.startswith(f"{status}: ") for status in abi.ERROR_CODES)


@contextmanager
def no_memory_for(plugin: Plugin) -> Iterator[None]:
    """No further handle can be made."""

    def refuse(*_: object) -> int:
        raise MemoryError

    add = plugin.handles.add
    plugin.handles.add = refuse  # type: ignore[method-assign]
    try:
        yield
    finally:
        plugin.handles.add = add  # type: ignore[method-assign]


def test_an_error_is_left_when_there_is_no_memory_for_one(calls: Calls) -> None:
    def refuse(plugin: Plugin, args: Any) -> None:
        raise ValueError("unheard")

    callback = abi.CALLBACK(
        guarded(calls.plugin, abi.args("Buffer_Device"), "Buffer_Device", refuse)
    )
    address = ctypes.cast(callback, ctypes.c_void_p).value or 0
    for _ in range(3):  # destroying it does not end it
        with no_memory_for(calls.plugin), pytest.raises(CallError, match="out of memory") as caught:
            calls.at(address, "Buffer_Device")
        assert caught.value.status == "RESOURCE_EXHAUSTED"


def test_a_path_that_is_no_utf8(run_python: RunPython) -> None:
    """What an installation below such a folder would have in its tracebacks."""
    done = run_python(
        r"""
        import jax
        from neuronjax.runtime.client import Client
        source, path = "def put(*_): raise RuntimeError('no luck')", "/tmp/\udcff/client.py"
        scope = {}
        exec(compile(source, path, "exec"), scope)
        Client.put = scope["put"]
        try:
            jax.device_put(1.0)
        except jax.errors.JaxRuntimeError as error:
            print(error)
        """
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert r"RuntimeError: no luck (at /tmp/\udcff/client.py:1)" in done.stdout


# A status stands once in front of its message

STATED: dict[str, tuple[BaseException, str, str]] = {
    "ours": (UnsupportedProgramError("no such op"), "UNIMPLEMENTED", "no such op"),
    "XLA's, in ours": (UnsupportedProgramError("UNIMPLEMENTED: no op"), "UNIMPLEMENTED", "no op"),
    "XLA's, not ours": (CompileError("INTERNAL: no op"), "INTERNAL", "no op"),
    "XLA's": (RuntimeError("NOT_FOUND: no file"), "NOT_FOUND", "no file"),
    "twice": (RuntimeError("ABORTED: ABORTED: stop"), "ABORTED", "stop"),
    "thrice": (CompileError("ABORTED: ABORTED: ABORTED: stop"), "ABORTED", "stop"),
    "two of them": (RuntimeError("ABORTED: INTERNAL: stop"), "ABORTED", "INTERNAL: stop"),
    "within": (CompileError("at INTERNAL: stop"), "INVALID_ARGUMENT", "at INTERNAL: stop"),
    "no status": (CompileError("NOTE: INTERNAL: stop"), "INVALID_ARGUMENT", "NOTE: INTERNAL: stop"),
    "nothing else": (CompileError("INTERNAL: "), "INTERNAL", ""),
}


@pytest.mark.parametrize("name", STATED)
def test_status_and_message(name: str) -> None:
    error, status, message = STATED[name]
    record = describe(error)
    assert (record.code, record.message.value.decode()) == (abi.ERROR_CODES[status], message)
