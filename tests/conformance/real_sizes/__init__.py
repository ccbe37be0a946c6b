"""Random programs at the sizes of real models, estimated on every machine."""
