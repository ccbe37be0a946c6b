"""Neighbouring kernels as one, and tensors that never leave SBUF.

* `join`: small kernels without a barrier between them; `unread`: copies that nobody reads.
* `forward`: tensors that are stored and loaded again stay in tiles; `resident`: where their
  elements lie there; `once`: walks that go through every element once.
"""
