"""The command ``neuronjax``."""
