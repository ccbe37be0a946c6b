"""Addresses, and who may share them.

* `allocate`: addresses of all buffers; `placement`: the search for gaps; `account`: what it takes.
* `coverage`, `lifetimes`, `occupancy`: when a buffer holds something that is still wanted.
"""
