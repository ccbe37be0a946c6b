"""Small networks of convolutions and transformers: MobileViT."""
