"""Loops written out, and instructions in an order that keeps all engines busy.

* `interleave`: goes through a program; `worthwhile`: the kernels that promise enough.
* `unroll`: iterations written one after the other; `webs`, `renaming`: tiles of their own for
  values that need not share one.
* `reach`, `precedence`: which instructions have to stay in order.
* `prices`, `clocks`: what instructions cost, and when engines are free.
* `greedy`, `arrange`: the next instruction, again and again; whole loops moved.
"""
