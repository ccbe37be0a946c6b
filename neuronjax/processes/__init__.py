"""Several processes as one machine: who they are, the links between them, collectives over both."""
