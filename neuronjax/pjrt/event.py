"""PJRT_Event calls."""

from __future__ import annotations

from typing import Any

from neuronjax.errors import ExecutionError
from neuronjax.pjrt import abi
from neuronjax.pjrt.handles import BYTES, WORDS, read_bytes
from neuronjax.pjrt.plugin_state import Plugin
from neuronjax.runtime.event import Event

_IS_READY = abi.args("Event_IsReady").is_ready.offset
_CALLBACK = abi.word("Event_OnReady", "callback")
_USER_ARG = abi.word("Event_OnReady", "user_arg")


def Event_Create(plugin: Plugin, args: Any) -> None:
    args.event = plugin.event_handle(Event())


def Event_Set(plugin: Plugin, args: Any) -> None:
    message = read_bytes(args.error_message, args.error_message_size).decode(errors="replace")
    plugin.handles[args.event].set(ExecutionError(message) if args.error_code else None)


def Event_Destroy(plugin: Plugin, address: int) -> None:
    event = WORDS[(address >> 3) + abi.OBJECT]
    if event != plugin.ready_event:
        plugin.handles.drop(event)


def Event_IsReady(plugin: Plugin, address: int) -> None:
    """A failed event says no, and its callback brings the error at once: jaxlib forgets to destroy
    events, and with them buffers, when it finds one that is ready with an error."""
    event = plugin.handles[WORDS[(address >> 3) + abi.OBJECT]]
    BYTES[address + _IS_READY] = event.is_ready() and event.error is None


def Event_Error(plugin: Plugin, address: int) -> None:
    error = plugin.handles[WORDS[(address >> 3) + abi.OBJECT]].error
    if error is not None:
        raise error


def Event_Await(plugin: Plugin, args: Any) -> None:
    error = plugin.handles[args.event].wait()
    if error is not None:
        raise error


def Event_OnReady(plugin: Plugin, address: int) -> None:
    arguments = address >> 3
    callback = abi.EVENT_CALLBACK(WORDS[arguments + _CALLBACK])
    user_arg = WORDS[arguments + _USER_ARG]

    def call(error: BaseException | None) -> None:
        callback(None if error is None else plugin.new_error(error), user_arg)

    plugin.handles[WORDS[arguments + abi.OBJECT]].on_ready(call)
