"""One module per file format: a reader yields the records of a file in order."""
