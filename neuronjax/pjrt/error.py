"""PJRT_Error: destruction. Message and code are copied from its record, see ``getters.py``."""

from __future__ import annotations

from neuronjax.pjrt import abi
from neuronjax.pjrt.handles import WORDS
from neuronjax.pjrt.plugin_state import Plugin


def Error_Destroy(plugin: Plugin, address: int) -> None:
    error = WORDS[(address >> 3) + abi.OBJECT]
    if error != plugin.last_error:
        plugin.handles.drop(error)
