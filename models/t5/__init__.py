"""T5: an encoder-decoder of text with relative positions."""
