"""`nki.typing`: how kernels annotate their parameters. Annotations have no effect."""

from __future__ import annotations

from neuronjax.nki.tensor import Tensor

tensor = mutable_tensor = Tensor
