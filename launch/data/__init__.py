"""What a run is trained on: from files to batches."""
