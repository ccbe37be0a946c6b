"""CLIP: a text tower and a vision tower whose outputs can be compared."""
