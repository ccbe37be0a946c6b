"""What the report page looks like: pictures taken in a browser, in small, to compare with.

The page shows a recording that is kept beside the pictures: they change with the page alone.
``python -m tests.profiling.screenshots`` takes them anew; look at them before you keep them.
"""

from __future__ import annotations

import io
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image

from neuronjax.profiling import page, store
from tests.browser import BROWSER

REFERENCES = Path(__file__).parent / "screenshots"
WIDTHS = {"phone": 390, "tablet": 820, "desktop": 1440}
SCHEMES = {"light": 1, "dark": 0}
"""What Blink calls the colours that a reader prefers."""
CASES = [f"{width}-{scheme}" for width in WIDTHS for scheme in SCHEMES]
_HEIGHT = 2400
_SCALE = 6
"""Pixels of the page for one of the pictures that are kept: lines of text become grey, and what a
font or a path is like does not matter."""


def write_page(folder: Path) -> None:
    """The page that is looked at, and a frame of each width around it: a window cannot be as narrow
    as a phone."""
    (folder / "page.html").write_text(page.report(store.read(REFERENCES / "profile.json")))
    for name, width in WIDTHS.items():
        (folder / f"{name}.html").write_text(
            "<!DOCTYPE html><style>body { margin: 0 } iframe { border: 0; display: block }</style>"
            f'<iframe src="page.html" width="{width}" height="{_HEIGHT}"></iframe>'
        )


def taken(folder: Path, case: str) -> Image.Image:
    """The picture of a case, in small."""
    name, scheme = case.split("-")
    target = folder / f"{case}.png"
    subprocess.run(
        [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
         "--disable-background-networking", f"--user-data-dir={folder}/user",
         f"--blink-settings=preferredColorScheme={SCHEMES[scheme]}",
         f"--window-size={max(WIDTHS[name], 600)},{_HEIGHT}", "--virtual-time-budget=4000",
         f"--screenshot={target}", f"file://{folder}/{name}.html"],
        capture_output=True, timeout=120, check=True,
    )  # fmt: skip
    picture = Image.open(io.BytesIO(target.read_bytes())).convert("RGB")
    picture = picture.crop((0, 0, WIDTHS[name], _HEIGHT))
    return picture.resize((WIDTHS[name] // _SCALE, _HEIGHT // _SCALE), Image.Resampling.BOX)


def difference(picture: Image.Image, expected: Image.Image, block: int = 10) -> float:
    """The greatest difference of a channel's mean over a block of pixels, of 255."""
    assert picture.size == expected.size
    pixels = np.asarray(picture, np.float64) - np.asarray(expected, np.float64)
    rows, columns = (size - size % block for size in pixels.shape[:2])
    blocks = pixels[:rows, :columns].reshape(rows // block, block, columns // block, block, 3)
    return float(np.abs(blocks.mean((1, 3))).max())


def reference(case: str) -> Image.Image:
    return Image.open(REFERENCES / f"{case}.png").convert("RGB")


def _pictures() -> Iterator[tuple[str, Image.Image]]:
    with tempfile.TemporaryDirectory() as folder:
        write_page(Path(folder))
        for case in CASES:
            yield case, taken(Path(folder), case)


def main() -> None:
    """Takes the references."""
    REFERENCES.mkdir(exist_ok=True)
    for case, picture in _pictures():
        picture.save(REFERENCES / f"{case}.png", optimize=True)


if __name__ == "__main__":
    main()
