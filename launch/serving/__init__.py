"""Serving: from a checkpoint to answers for many clients at once.

* `requests`: what is asked for, and what comes back.
* `cache`: blocks of the paged cache, who holds them, and which prefix lies in them.
* `scheduler`: requests in, the plan of a step out; no JAX, so that a simulated clock drives it too.
* `sampling`: the choice of tokens on the device.
* `runner`: the compiled programs of all buckets, and the arrays they work on.
* `engine`: the loop that keeps the device busy with the scheduler's plans.
"""
