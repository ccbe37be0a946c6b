"""The key-value store of ``jax.distributed``, through the callbacks that JAX gives a client."""

from __future__ import annotations

import ctypes
from typing import Any

from neuronjax.errors import PeerError
from neuronjax.pjrt.handles import c_string
from neuronjax.pjrt.plugin_state import Plugin

_OnError = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int32, ctypes.c_void_p, ctypes.c_size_t)
_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_Callback = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)


class _Get(ctypes.Structure):
    """``PJRT_KeyValueGetCallback_Args``."""

    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("extension_start", ctypes.c_void_p),
        ("key", ctypes.c_void_p),
        ("key_size", ctypes.c_size_t),
        ("timeout_in_ms", ctypes.c_int32),
        ("callback_error", ctypes.c_void_p),
        ("user_arg", ctypes.c_void_p),
        ("value", ctypes.c_void_p),
        ("value_size", ctypes.c_size_t),
        ("value_deleter_callback", ctypes.c_void_p),
    )


class _Put(ctypes.Structure):
    """``PJRT_KeyValuePutCallback_Args``."""

    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("extension_start", ctypes.c_void_p),
        ("key", ctypes.c_void_p),
        ("key_size", ctypes.c_size_t),
        ("value", ctypes.c_void_p),
        ("value_size", ctypes.c_size_t),
        ("callback_error", ctypes.c_void_p),
        ("user_arg", ctypes.c_void_p),
    )


class KeyValueStore:
    """A ``Store`` while the call that brought the callbacks, ``Client_Create``, lasts."""

    def __init__(self, plugin: Plugin, args: Any) -> None:
        self._plugin = plugin
        self._get, self._get_argument = args.kv_get_callback, args.kv_get_user_arg
        self._put, self._put_argument = args.kv_put_callback, args.kv_put_user_arg
        if not self._get or not self._put:
            raise PeerError("JAX gave the platform no way to reach the other processes")
        self._error = ""

    def put(self, key: str, value: str) -> None:
        """Raises ``PeerError`` if the coordinator cannot be reached."""
        name, text = key.encode(), value.encode()
        name_buffer, text_buffer = c_string(name), c_string(text)
        record = _Put(
            struct_size=ctypes.sizeof(_Put),
            key=ctypes.addressof(name_buffer),
            key_size=len(name),
            value=ctypes.addressof(text_buffer),
            value_size=len(text),
            user_arg=self._put_argument,
        )
        if not self._called(self._put, record):
            raise PeerError(f"the coordinator cannot be reached: {self._error}")

    def get(self, key: str, seconds: float) -> str | None:
        name = key.encode()
        name_buffer = c_string(name)
        record = _Get(
            struct_size=ctypes.sizeof(_Get),
            key=ctypes.addressof(name_buffer),
            key_size=len(name),
            timeout_in_ms=max(1, round(seconds * 1000)),
            user_arg=self._get_argument,
        )
        if not self._called(self._get, record):
            return None
        text = ctypes.string_at(record.value, record.value_size).decode()
        if record.value_deleter_callback:
            _Deleter(record.value_deleter_callback)(record.value)
        return text

    def _called(self, callback: int, record: Any) -> bool:
        def note(code: int, message: int, size: int) -> int:
            self._error = ctypes.string_at(message, size).decode(errors="replace")
            return self._plugin.new_error(PeerError(self._error))

        on_error = _OnError(note)
        pointer = ctypes.c_void_p(ctypes.cast(on_error, ctypes.c_void_p).value)
        record.callback_error = ctypes.addressof(pointer)
        error = _Callback(callback)(ctypes.addressof(record))
        if error:
            self._plugin.handles.drop(error)
        return not error
