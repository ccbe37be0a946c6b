"""Published trainings by name, and their twins in small."""
