"""`/v1/embeddings`: vectors of texts."""

import base64
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from launch.pooling.text import Text
from launch.serving.http.bodies import Body
from launch.serving.http.pooled import Pooled, usage_of
from launch.serving.http.site import WholeAnswer

# How a vector FP32 [D] is written.
_FORMATS: Mapping[str, Callable[[np.ndarray], Any]] = {
    "float": lambda vector: vector.tolist(),
    "base64": lambda vector: base64.b64encode(vector.astype("<f4").tobytes()).decode(),
}


@dataclass(frozen=True)
class Embeddings(WholeAnswer):
    """The parsed body of a request for embeddings."""

    pooled: Pooled
    texts: Sequence[Text]
    dimensions: int | None  # None = all
    format: str
    kind: str  # of what is told of each text
    field: str  # that holds its vector

    @classmethod
    def read(
        cls,
        pooled: Pooled,
        width: int,
        body: Body,
        kind: str = "embedding",
        field: str = "embedding",
    ) -> "Embeddings":
        """Raises RequestError or HTTPError for a body that cannot be answered. `width`: of the
        model's vectors."""
        pooled.check_model(body)
        form = body.text("encoding_format", "float")
        if form not in _FORMATS:
            raise body.fail("encoding_format", " or ".join(_FORMATS))
        dimensions = body.integer("dimensions")
        if dimensions is not None and not 1 <= dimensions <= width:
            raise body.fail("dimensions", f"a number from 1 to {width}")
        return cls(pooled, pooled.texts(body, "input"), dimensions, form, kind, field)

    async def whole(self) -> dict[str, Any]:
        """The vectors, in the order of the texts."""
        vectors = await self.pooled.compute(self.texts)
        return {
            "id": self.pooled.new_id(self.kind),
            "object": "list",
            "created": int(time.time()),
            "data": [
                {
                    "object": self.kind,
                    "index": index,
                    self.field: _FORMATS[self.format](self._shorten(vector)),
                }
                for index, vector in enumerate(vectors)
            ],
            "model": self.pooled.name,
            "usage": usage_of(self.texts),
        }

    def _shorten(self, vector: np.ndarray) -> np.ndarray:
        """The first dimensions, brought to length 1: what models trained for it (Kusupati et al.,
        "Matryoshka", 2022) mean by fewer."""
        if self.dimensions is None:
            return vector
        part = vector[: self.dimensions]
        return part / max(float(np.linalg.norm(part)), 1e-12)
