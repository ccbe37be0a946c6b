"""Kernels on both physical cores of a logical one (LNC 2): `split`, by `halving` nodes."""
