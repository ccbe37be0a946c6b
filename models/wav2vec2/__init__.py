"""Transformers over the samples of speech: Wav2Vec2, HuBERT, UniSpeech, UniSpeech-SAT, WavLM."""
