"""Line numbers of test files by a comment in them."""

import inspect
from pathlib import Path


def here(mark: str) -> str:
    """``file:line`` of the line of the calling file that ends with ``# mark``."""
    file = Path(inspect.stack()[1].filename)
    (line,) = [
        number
        for number, text in enumerate(file.read_text().splitlines(), 1)
        if text.endswith(f"# {mark}")
    ]
    return f"{file}:{line}"
