"""Small convolutional networks of inverted residuals that weigh their channels: EfficientNet."""
