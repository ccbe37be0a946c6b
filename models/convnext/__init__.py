"""Convolutional networks in the manner of transformers: ConvNeXt and ConvNeXt V2."""
