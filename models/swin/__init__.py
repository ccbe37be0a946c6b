"""Vision transformers whose attention looks at shifted windows: Swin and the encoder of Donut."""
