"""BART: a source text to a target text."""
