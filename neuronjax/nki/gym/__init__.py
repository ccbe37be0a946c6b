"""Kernels judged: values against a reference, races, capacity, time, counters, and what is slow.

* `evaluation`: `evaluate`, all of it for a kernel in this process; `agreement`: its values.
* `slow_lines`: the costliest lines, and what they wait for.
* `files`: kernels and tasks of files; `trials`: many of them, which nobody has read, in processes.
* `runner`, `worker`: the process that forks them, and what they do.
* `limits`, `sandbox`: what they may take, and what they may not touch.
* `difference`: two kernels side by side.
"""
