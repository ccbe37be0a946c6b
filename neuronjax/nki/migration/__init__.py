"""Kernels of NKI 0.x written anew in the present dialect: `neuronjax nki migrate`."""
