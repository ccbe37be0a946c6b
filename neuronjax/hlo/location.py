"""Where in the user's source an op comes from."""

from __future__ import annotations

import re
from typing import Any

_FILE_AND_LINE = re.compile(r'"([^"]+)":(\d+):\d+')


def source_line(op: Any) -> str:
    """``file:line`` of the innermost known frame of an op, or ``unknown source``."""
    match = _FILE_AND_LINE.search(str(op.location))
    return f"{match[1]}:{match[2]}" if match else "unknown source"
