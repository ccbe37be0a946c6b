"""Vision transformers that say something of every place, its depth or its class: DPT."""
