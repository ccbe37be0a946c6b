"""Whisper: an encoder over sound and a decoder that writes what was said."""
