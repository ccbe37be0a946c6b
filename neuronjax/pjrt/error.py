"""PJRT_Error: message, code, destruction."""

from __future__ import annotations

import ctypes
from typing import Any

from neuronjax.pjrt.plugin_state import Plugin


def Error_Destroy(plugin: Plugin, args: Any) -> None:
    if args.error != plugin.last_error:
        plugin.handles.drop(args.error)


def Error_Message(plugin: Plugin, args: Any) -> None:
    record = plugin.handles[args.error]
    args.message = ctypes.addressof(record.message)
    args.message_size = len(record.message) - 1


def Error_GetCode(plugin: Plugin, args: Any) -> None:
    args.code = plugin.handles[args.error].code
