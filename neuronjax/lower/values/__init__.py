"""What values are in memory, before anything is decided about them.

* `storage`: StableHLO types in the memories of a core; `view`: strides over an HBM buffer.
"""
