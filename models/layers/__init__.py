"""Building blocks shared by the model families: one module per file, no knowledge of meshes."""
