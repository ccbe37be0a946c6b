"""Machine code that runs a program on one core without a line of Python: LLVM IR.

``run_short`` is the short way of ``execute.py`` for a program that has been run once: it takes the
arguments' arrays from the records of their buffers, lets jaxlib run the program, and writes bare
values (``values.py``) for the results. It holds the interpreter's lock, and has three answers:

* ``NO``: nothing was done. Python is to serve the call, or to say what is wrong with it.
* ``DONE``.
* ``PENDING``: the run has not ended, or failed, or there are not enough free records. Python is to
  make values of the results, which stand in the *rest*, words of the caller.

Of jaxlib it relies on what ``jaxlib_api/cpu_client.py`` names, called by the same names.
"""

from __future__ import annotations

from collections.abc import Mapping

from neuronjax.pjrt import abi
from neuronjax.pjrt.ir_lines import expanded
from neuronjax.pjrt.values import RECORD_BYTES, offset
from neuronjax.runtime.memory import CORE_COUNTS

NO, DONE, PENDING = range(3)

PLAN_WORD = 0
"""The word in the record of a loaded executable with the address of its plan, or 0."""

PLAN = (
    "program",  # the ``LoadedProgram``
    "plain",  # its ``PlainRun``, without which it goes another way
    "observers",  # a list, without entries where nobody watches
    "start",  # a method of jaxlib's executable
    "handlers",  # a list
    "device",  # handle
    "arguments",  # count
    "results",  # count
    "bytes",  # of the results
    "needed",  # bytes with the temporaries of a run
)
"""The words of a plan; behind them the records of fresh results."""

REST = ("arguments", "outputs")
"""What Python gets that has to end a run: the address of the call's arguments, and the list of
arrays."""

NAMES = ("array", "plain", "consume_with_handlers", "is_ready", "block_until_ready")
"""Python names that the code looks up, each in the word ``name_…``."""

FUNCTIONS = {
    "list_new": "PyList_New",
    "list_set": "PyList_SetItem",
    "list_get": "PyList_GetItem",
    "size": "PyObject_Size",
    "attribute": "PyObject_GetAttr",
    "method": "PyObject_VectorcallMethod",
    "keep": "Py_IncRef",
}
"""Words with functions of Python beside those that every call needs."""


def description(words: Mapping[str, str]) -> str:
    """The functions; ``words`` are the addresses of the words of the table, as IR."""
    numbers = {
        "plan_records": len(PLAN),
        "record_words": RECORD_BYTES // 8,
        "NO": NO,
        "DONE": DONE,
        "PENDING": PENDING,
    }
    files = ("bare_values.ll", "short_run.ll")
    return "".join(expanded(file, words, _fields(), numbers) for file in files)


def _fields() -> dict[str, int]:
    """Byte offsets in the records of values, the counts of a core, the arguments, and the plan."""
    run = abi.args("LoadedExecutable_Execute")
    at = {field: offset(field) for field in ("spec", "device", "bytes", "value")}
    at |= {name: 8 * number for number, name in enumerate(CORE_COUNTS)}
    at |= {name: getattr(run, name).offset for name, _ in run._fields_}
    at["next"] = offset("dims")
    words = {"plan_word": PLAN_WORD} | {f"plan_{name}": number for number, name in enumerate(PLAN)}
    return {f"at_{name}": byte for name, byte in at.items()} | {
        name: 8 * word for name, word in words.items()
    }
