"""Adapters of one model, many at once: `stacks` makes room for them in the model, `registry` knows
who has which place."""
