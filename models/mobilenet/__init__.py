"""Small convolutional networks of inverted residuals: MobileNetV2."""
