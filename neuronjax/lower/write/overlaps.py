"""How many kernels run at a time: those who give them memory and those who order them agree."""

OVERLAPS = 2
"""Kernels before one that may still run: with one, a small kernel between two large ones keeps the
loads of the second from running beside the first; with more, fewer find memory of their own."""
