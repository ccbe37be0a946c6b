"""PJRT_Event calls."""

from __future__ import annotations

from typing import Any

from neuronjax.errors import ExecutionError
from neuronjax.pjrt import abi
from neuronjax.pjrt.handles import read_bytes
from neuronjax.pjrt.plugin_state import Plugin
from neuronjax.runtime.event import Event


def Event_Create(plugin: Plugin, args: Any) -> None:
    args.event = plugin.event_handle(Event())


def Event_Set(plugin: Plugin, args: Any) -> None:
    message = read_bytes(args.error_message, args.error_message_size).decode(errors="replace")
    plugin.handles[args.event].set(ExecutionError(message) if args.error_code else None)


def Event_Destroy(plugin: Plugin, args: Any) -> None:
    if args.event != plugin.ready_event:
        plugin.handles.drop(args.event)


def Event_IsReady(plugin: Plugin, args: Any) -> None:
    """A failed event says no, and its callback brings the error at once: jaxlib forgets to destroy
    events, and with them buffers, when it finds one that is ready with an error."""
    event = plugin.handles[args.event]
    args.is_ready = event.is_ready() and event.error is None


def Event_Error(plugin: Plugin, args: Any) -> None:
    error = plugin.handles[args.event].error
    if error is not None:
        raise error


def Event_Await(plugin: Plugin, args: Any) -> None:
    error = plugin.handles[args.event].wait()
    if error is not None:
        raise error


def Event_OnReady(plugin: Plugin, args: Any) -> None:
    callback, user_arg = abi.EVENT_CALLBACK(args.callback), args.user_arg

    def call(error: BaseException | None) -> None:
        callback(None if error is None else plugin.new_error(error), user_arg)

    plugin.handles[args.event].on_ready(call)
