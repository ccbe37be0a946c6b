"""`neuronxcc.nki.typing`: names for annotations."""

from __future__ import annotations

from neuronjax.nki.tensor import Tensor


class _Annotation:
    """A tensor in annotations, also with a dtype and a shape: `nt.tensor[nt.float32, …]`."""

    def __class_getitem__(cls, entries: object) -> type[_Annotation]:
        return cls


class tensor(_Annotation):
    """A tensor that the kernel reads."""


class mutable_tensor(_Annotation):
    """A tensor that the kernel writes to."""


Tensor = Tensor
