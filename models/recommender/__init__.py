"""Recommenders: how likely somebody takes what is offered."""
