"""Writing and changing programs.

* `builder`: one kernel: tiles, loops and instructions in the order of one core's program.
* `rebuild`: programs with other buffers; frozen records are made anew where they change.
"""
