"""Bitonic networks: `sort`, and the first of sorted rows in `top_k`."""
