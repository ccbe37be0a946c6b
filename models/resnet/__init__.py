"""Residual convolutional networks."""
