"""Vision transformers whose last tokens find objects: YOLOS."""
