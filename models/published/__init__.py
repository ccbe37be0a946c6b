"""Dimensions of well-known checkpoints by their published names."""
