"""Reductions of any monoid, over dimensions or windows.

* `reduce`: whole dimensions; `windows`, `slide`: pooling; `unpooling`: its gradient; `running`:
  cumulative sums, products and extrema.
"""
