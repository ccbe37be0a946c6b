"""Control flow, collectives, and what is left to the host.

* `control_flow`: `while`, `case`, `if`.
* `collectives`: between ranks; `host`, `printing`: operations that no engine can do, as MLIR.
"""
