"""How many rows share the weights that `swiglu` and its gradients load, so that SBUF holds it all.

Axis names: D model width, F hidden width.
"""

from typing import Any

import nki.language as nl

from models.kernels.products import BLOCK
from models.kernels.tiles import ROWS

CHOICES = (512, 256, 128)
"""Rows: the columns of a product. The more, the less often weights are loaded."""

MOST_BYTES = 176 << 10
"""Of a partition of SBUF, for what is counted here."""


TOGETHER = 4
"""Parts of 128 hidden numbers whose products for the gradient of x are added up in PSUM."""

STAGES = 3
"""Behind that which transposes weights."""


def rows_of_value(width: int, hidden: int, itemsize: int) -> int:
    """Of the kernel of the value; 0: not even 128 fit."""

    def needed(rows: int) -> int:
        """Bytes while hidden numbers are made, and while they are multiplied with `down`."""
        made = width * (rows + 2 * BLOCK) + hidden * rows
        return max(made, hidden * (rows + BLOCK)) * itemsize // ROWS

    return next((rows for rows in CHOICES if needed(rows) <= MOST_BYTES), 0)


def rows_of_gradients(width: int, itemsize: int) -> int:
    """Of the kernel of the gradients; 0: not even 128 fit."""

    def needed(rows: int) -> int:
        """Bytes of x and the gradient of y, FP32 sums, and weights as they are and transposed."""
        weights = 2 * BLOCK + (2 * (TOGETHER + STAGES) + 4) * ROWS
        return width * ((2 * itemsize + 4) * rows + weights * itemsize) // ROWS

    return next((rows for rows in CHOICES if needed(rows) <= MOST_BYTES), 0)


def bytes_of(dtype: Any) -> int:
    """Of a number of a tensor of a kernel."""
    return 2 if dtype in (nl.bfloat16, nl.float16) else 4
