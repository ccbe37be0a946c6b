"""Vectors and classes of whole texts: `heads` says what a model makes of a text, `runner` computes
it for batches of static shapes, `buckets` chooses them."""
