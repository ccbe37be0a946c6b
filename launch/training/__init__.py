"""The trainer's core: one step for every model, objective, parallelism and precision."""
