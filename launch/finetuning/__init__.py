"""Fine-tuning: adapters, conversations, preferences and the tasks of every kind of model."""
