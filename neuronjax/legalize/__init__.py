"""Graph-level numerics and legality: the only place where they live."""
