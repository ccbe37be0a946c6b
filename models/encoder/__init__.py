"""Bidirectional encoders of text: one post-norm model, switched by its config."""
