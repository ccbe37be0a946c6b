"""Vision transformers: ViT and DeiT."""
