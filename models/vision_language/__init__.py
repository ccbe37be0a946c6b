"""Language models that see images: a vision tower, a connector and a decoder."""
