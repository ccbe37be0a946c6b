"""What `launch.run` can do with a checkpoint: one module per task, one table."""
