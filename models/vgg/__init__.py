"""Images to labels by plain convolutions: VGG."""
