"""Vision transformers over spectrograms, for the classes of sounds: AST."""
