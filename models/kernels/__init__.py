"""Kernels for NeuronCores, in plain NKI, and beside each the JAX function that calls it.

One file per kernel. They import `nki` when they are imported, which nothing else in `models` does:
where the package of that name is not installed, `neuronjax.nki.install()` stands in for it.
"""
