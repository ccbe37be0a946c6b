"""Semaphores.

* `synchronise`: puts them into a program; `streams`: what is in order without them; `knowledge`:
  what is known to be done; `segments`: kernels whose control no register decides about.
* `ahead`: which engines start loads; `overlapping`: kernels that begin while others run.
* `dependences`: what has to wait for what; `patterns`, `distance`, `search`: for which iterations;
  `overlap`: which buffers share memory.
"""
