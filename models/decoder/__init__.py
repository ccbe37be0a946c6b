"""Decoder-only language models: one model, switched by its config."""
