"""Windows that index vectors or offsets name.

* `gather`, `scatter`: by `gather_table`, windows as rows of a table; `row_sums`: updates of one row
  added by a product; `addresses`: windows whose place a register holds.
* `movement`: iota, concatenate, pad, dynamic slices and updates.
"""
