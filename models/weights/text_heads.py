"""Keys of the heads of models/layers/text_heads.py."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from models.weights.rows import dense_rows, norm_rows
from models.weights.table import Row, row


@dataclass(frozen=True)
class HeadKeys:
    """Keys of a head's parts; what a head does not have is None.

    In `transform`, `{prefix}` stands for that of the encoder.
    """

    transform: str | None = None
    norm: str | None = None
    output: str | None = None
    vocab_bias: str | None = None
    vocab_rest: str | None = None  # what the output vocabulary has beyond the embedding
    table: str | None = None  # of the output vocabulary: the embedding's once more

    def rows(self, prefix: str) -> Iterator[Row]:
        """The rows of the head."""
        if self.transform is not None:
            key = self.transform.format(prefix=prefix)
            yield from dense_rows(key, "head.transform.dense")
        if self.norm is not None:
            yield from norm_rows(self.norm, "head.transform.norm")
        if self.output is not None:
            yield from dense_rows(self.output, "head.output")
        if self.vocab_bias is not None:
            yield row(self.vocab_bias, "head.vocab_bias")
        if self.vocab_rest is not None:
            yield row(f"{self.vocab_rest}.weight", "head.vocab_rest.kernel")

    def substitutes(self) -> Iterator[tuple[str, str]]:
        """The bias of the vocabulary may be stored with the table alone."""
        if self.table is not None and self.vocab_bias is not None:
            yield self.vocab_bias, f"{self.table}.bias"

    def others(self) -> Iterator[str]:
        """Regular expressions of the head's tensors, for encoders without it."""
        parts = (
            self.transform,
            self.norm,
            self.output,
            self.table,
            self.vocab_bias,
            self.vocab_rest,
        )
        for key in filter(None, parts):
            if not key.startswith("{prefix}"):
                yield re.escape(key) + r"(\..*)?"

    def repeated(self) -> Iterator[str]:
        """Regular expressions of tensors that hold a parameter once more."""
        if self.table is not None:
            yield re.escape(f"{self.table}.weight")
            if self.vocab_bias != f"{self.table}.bias":
                yield re.escape(f"{self.table}.bias")
