"""Vision transformers whose tokens and attention are made by convolutions: CvT."""
