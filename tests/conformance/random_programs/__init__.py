"""Random JAX programs: what engines compute of them against the host. See `__main__.py`."""
