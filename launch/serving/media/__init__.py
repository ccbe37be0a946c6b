"""Models of sound and images behind the API: `speech` hears, `images` paints."""
