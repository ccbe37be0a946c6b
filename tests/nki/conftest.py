"""The kernels of `models.kernels` import `nki`, as kernels for the chip do."""

from neuronjax import nki

nki.install()
