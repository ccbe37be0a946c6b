"""Control flow, collectives, and what is left to the host.

* `control_flow`: `while`, `case`, `if`; `trips`: how often a loop runs, where that is known.
* `collectives`: between ranks; `host`, `printing`: operations that no engine can do, as MLIR.
"""
