"""Small vision transformers with batch norms: LeViT."""
