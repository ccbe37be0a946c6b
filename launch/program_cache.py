"""Compiled programs on disk, so that a program starts faster the second time."""

from pathlib import Path

import jax


def keep_programs(folder: str) -> None:
    """Lets JAX keep the programs that are compiled from now on in a folder, and find them there,
    unless it has one already; an empty name is no folder."""
    if folder and jax.config.jax_compilation_cache_dir is None:
        jax.config.update("jax_compilation_cache_dir", str(Path(folder).expanduser()))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
