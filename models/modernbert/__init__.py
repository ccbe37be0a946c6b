"""ModernBERT: a pre-norm encoder of text with rotary positions and local attention."""
