"""Reductions of any monoid, over dimensions or windows.

* `reduce`: whole dimensions; `windows`, `window`: pooling; `unpooling`: its gradient; `running`:
  cumulative sums, products and extrema.
"""
