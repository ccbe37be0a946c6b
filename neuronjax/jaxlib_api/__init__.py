"""The one door to what JAX and jaxlib do not publish.

No other room imports ``jax._src``, ``jaxlib`` or the wire formats, dump names and error texts of
XLA. Each file says what is relied on and what to do when it goes; ``tests/jaxlib_api`` holds the
installed libraries against it.
"""
