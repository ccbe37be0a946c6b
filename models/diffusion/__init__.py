"""Latent diffusion: Stable Diffusion and SDXL."""
