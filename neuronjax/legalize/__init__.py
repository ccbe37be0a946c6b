"""Graph-level numerics and legality, all in one place."""
