"""Vectors of whole texts, as directories of sentence-transformers say."""
