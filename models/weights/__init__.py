"""Checkpoints of the Hugging Face layout: config.json and safetensors files, read and written."""
