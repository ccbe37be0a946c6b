"""The Llama family of decoders."""
