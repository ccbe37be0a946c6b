"""Steps on the device: `programs` are compiled for every bucket, `runner` feeds them, `sizes`
chooses buckets and the size of the cache."""
