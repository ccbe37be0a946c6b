"""Vectors and classes of whole texts: `heads` says what a model makes of a text, `runner` computes
it for batches of static shapes, `encoder` is a directory of sentence-transformers with both."""
