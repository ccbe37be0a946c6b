"""Loops written out or entered in the middle; instructions in an order that keeps engines busy.

* `interleave`: goes through a program; `worthwhile`: the kernels that promise enough.
* `reorder`: goes through one kernel.
* `unroll`: iterations written one after the other; `pipelining`: iterations that overlap.
* `webs`, `renaming`: tiles of their own for values that need not share one.
* `contacts`, `precedence`: which instructions have to stay in order.
* `clocks`: when engines are free.
* `greedy`, `arrange`: the next instruction, again and again; whole loops moved.
"""
