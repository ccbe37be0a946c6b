"""Parallelism by positions, heads and experts; functions of one core's part."""
