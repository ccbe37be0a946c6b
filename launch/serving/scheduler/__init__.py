"""Who gets the device next: `scheduler` plans steps of `sequences` in `slots`, in shapes of
`buckets`. Nothing here imports JAX."""
