"""Transformers over patches of time series, which tell how they go on: PatchTST."""
