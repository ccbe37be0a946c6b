"""Large programs that people bring, run unmodified on `cpu` and on `neuron`."""
