"""The machine code around the Python callbacks, described once for every architecture: LLVM IR.

Two kinds of functions, all with the signature of a PJRT call (argument record in, error out):

* ``enter_<call>`` calls a Python function, quicker than ctypes, and does what that leaves out. A
  pending exception is put aside meanwhile: one on its way up drops frames and with them arrays,
  whose buffers JAX then destroys while the exception is set. And once the process ends, no thread
  but the main one gets in: it would be ended in the middle of its work, and whoever joins it would
  wait for ever.
* ``call_<call>`` answers without Python, a few loads from the record of a handle, or goes on as
  ``enter_<call>`` where the record does not hold the answer. ``call_LoadedExecutable_Execute`` is
  the exception: it holds the interpreter's lock, and answers by ``short_run_ir.py``.

``take_destroyed``, which Python calls, empties the list of destroyed small values.

The code knows one address, that of ``@table``: words that ``native.py`` fills in. So it is the same
in every process and can be compiled long before.
"""

from __future__ import annotations

from collections.abc import Sequence

from neuronjax.pjrt import abi
from neuronjax.pjrt import short_run_ir as short_run
from neuronjax.pjrt.getters import (
    BUFFER_DESTROY_LAST,
    COPIES,
    FLAGGED,
    NOTHING,
    ZEROS,
    position,
    width,
)
from neuronjax.pjrt.ir_lines import expanded
from neuronjax.pjrt.values import RECORD_BYTES, offset

FIXED_WORDS = (
    "closed",  # 1 when the process ends
    "inside",  # calls of threads other than the main one that have not returned
    "main_thread",  # PyThread_get_thread_ident() of it
    "thread_ident",  # from here on addresses of functions
    "is_finalizing",
    "ensure",
    "fetch",
    "restore",
    "release",
    "number_of",
    "address_of",
    "call",
    "drop",
    "clear",
    "none",  # the object
    "enter",
    "ready_event",  # handles
    "refusal",
    "destroyed",  # the first record on the list of destroyed small values
    "true",  # the object
    "run_short",  # the function, or null to lead runs into Python
    *short_run.FUNCTIONS,
    *(f"name_{name}" for name in short_run.NAMES),
    "destroyed_bare",  # the first record on the list of destroyed bare values
    "free_records",  # the first of those for bare values
    "free_count",
    "bare_values",  # how many there are
)
"""The first words of the table; behind them the callbacks, Python functions, in the order of
``ENTRIES``."""

DELETER = "deleter"
COLLECT = "collect"
"""Ends destroyed small values; takes anything."""
END_RUN = "end_run"
"""Ends a run that machine code has begun; its argument is the address of the rest."""
FROM_CODE = (BUFFER_DESTROY_LAST, COLLECT, END_RUN)
"""What machine code leaves to Python besides the calls."""
EXECUTE = "LoadedExecutable_Execute"
STUBS = (*COPIES, *ZEROS, *FLAGGED, "Error_Destroy", "Buffer_Destroy", EXECUTE)
"""The calls that are answered without Python."""


def description(entries: Sequence[str]) -> str:
    """The module; ``entries`` are the names of the Python callbacks."""
    words = {name: _word(index) for index, name in enumerate(FIXED_WORDS)}
    callbacks = {name: _word(len(FIXED_WORDS) + index) for index, name in enumerate(entries)}
    parts = [
        f"@table = external dso_local global [{len(FIXED_WORDS) + len(entries)} x i64]",
        expanded(
            "enter.ll",
            {**words, END_RUN: callbacks[END_RUN]},
            {},
            {
                "words_of_rest": len(short_run.REST),
                "DONE": short_run.DONE,
                "PENDING": short_run.PENDING,
            },
        ),
        short_run.description({**words, COLLECT: callbacks[COLLECT]}),
        *(
            _function(f"enter_{name}", _go_on(words, callback, name))
            for name, callback in callbacks.items()
        ),
        *(
            _function(f"call_{name}", _OBJECT_LINE + "".join(_getter(name, fields)))
            for name, fields in COPIES.items()
        ),
        *(
            _function(f"call_{name}", "".join(_zeros(name, fields)))
            for name, fields in ZEROS.items()
        ),
        *(
            _function(f"call_{name}", _flagged(name, flag, answer, words, callbacks[name]))
            for name, (flag, answer) in FLAGGED.items()
        ),
        _function("call_Error_Destroy", _if_object(words, callbacks["Error_Destroy"])),
        _function("call_Buffer_Destroy", _count_down(words, callbacks[BUFFER_DESTROY_LAST])),
        _function(
            f"call_{EXECUTE}",
            f"  %short = load ptr, ptr {words['run_short']}\n"
            + _go_on(words, callbacks[EXECUTE], EXECUTE, "%short"),
        ),
        'attributes #0 = { nounwind uwtable "frame-pointer"="all" }',
    ]
    return "\n".join(parts) + "\n"


_OBJECT_LINE = f"  %object_p = getelementptr i8, ptr %args, i64 {8 * abi.OBJECT}\n" + (
    "  %object = load ptr, ptr %object_p\n"
)


def _word(index: int) -> str:
    return f"getelementptr (i64, ptr @table, i64 {index})"


def _function(name: str, body: str) -> str:
    return f"\ndefine ptr @{name}(ptr %args) #0 {{\n{body}}}"


def _go_on(words: dict[str, str], callback: str, call: str, short: str = "null") -> str:
    """Into Python, unless the function ``short`` answers. Who comes too late gets an error, or
    nothing where something is to end."""
    ends = call.endswith(("_Destroy", "_Delete")) or call in (BUFFER_DESTROY_LAST, DELETER, NOTHING)
    refusal = "  %refusal = inttoptr i64 0 to ptr\n"
    if not ends:
        refusal = f"  %refusal = load ptr, ptr {words['refusal']}\n"
    return (
        f"{refusal}  %callback = load ptr, ptr {callback}\n"
        f"  %enter = load ptr, ptr {words['enter']}\n"
        f"  %error = tail call ptr %enter(ptr %args, ptr %callback, ptr %refusal, ptr {short})\n"
        "  ret ptr %error\n"
    )


def _getter(call: str, fields: Sequence[tuple[str, int, int]]) -> list[str]:
    """Copies fields of the object's record into the arguments."""
    copies = []
    for n, (name, source, bits) in enumerate(fields):
        to = width(call, name)
        widened = f"zext i{bits} %value{n} to" if to > bits else f"bitcast i{bits} %value{n} to"
        copies.append(
            f"  %from{n} = getelementptr i8, ptr %object, i64 {source}\n"
            f"  %value{n} = load i{bits}, ptr %from{n}\n"
            f"  %wide{n} = {widened} i{to}\n"
            f"  %to{n} = getelementptr i8, ptr %args, i64 {position(call, name)}\n"
            f"  store i{to} %wide{n}, ptr %to{n}\n"
        )
    return [*copies, "  ret ptr null\n"]


def _zeros(call: str, fields: Sequence[tuple[str, int]]) -> list[str]:
    stores = [
        f"  %to{n} = getelementptr i8, ptr %args, i64 {position(call, name)}\n"
        f"  store i{bits} 0, ptr %to{n}\n"
        for n, (name, bits) in enumerate(fields)
    ]
    return [*stores, "  ret ptr null\n"]


def _flagged(call: str, flag: int, answer: str, words: dict[str, str], callback: str) -> str:
    """The answer if the flag is set, else Python."""
    return (
        _OBJECT_LINE + f"  %flag_p = getelementptr i8, ptr %object, i64 {flag}\n"
        "  %flag = load atomic i8, ptr %flag_p acquire, align 1\n"
        "  %unset = icmp eq i8 %flag, 0\n"
        "  br i1 %unset, label %python, label %known\n"
        f"known:\n{_answer(call, answer, words)}  ret ptr null\n"
        f"python:\n{_go_on(words, callback, call)}"
    )


def _answer(call: str, answer: str, words: dict[str, str]) -> str:
    if answer == "ready_event":
        return (
            f"  %event = load ptr, ptr {words['ready_event']}\n"
            f"  %to = getelementptr i8, ptr %args, i64 {position(call, 'event')}\n"
            "  store ptr %event, ptr %to\n"
        )
    if answer == "is_ready":
        return (
            f"  %to = getelementptr i8, ptr %args, i64 {position(call, 'is_ready')}\n"
            "  store i8 1, ptr %to\n"
        )
    if answer == "on_ready":
        return (
            f"  %function_p = getelementptr i8, ptr %args, i64 {position(call, 'callback')}\n"
            "  %function = load ptr, ptr %function_p\n"
            f"  %argument_p = getelementptr i8, ptr %args, i64 {position(call, 'user_arg')}\n"
            "  %argument = load ptr, ptr %argument_p\n"
            "  call void %function(ptr null, ptr %argument)\n"
        )
    return ""


def _if_object(words: dict[str, str], callback: str) -> str:
    """The code that answers NULL with nothing, and goes to Python with an object."""
    return (
        _OBJECT_LINE + "  %none = icmp eq ptr %object, null\n"
        "  br i1 %none, label %nothing, label %python\n"
        "nothing:\n  ret ptr null\n"
        f"python:\n{_go_on(words, callback, 'Error_Destroy')}"
    )


def _count_down(words: dict[str, str], callback: str) -> str:
    """Takes a live shard from the record of shard 0. Of the last Python hears, or a small value's
    records go on the list, on top of which ``dims`` has the next."""
    return (
        _OBJECT_LINE + f"  %shard_p = getelementptr i8, ptr %object, i64 {offset('shard')}\n"
        "  %shard = load i16, ptr %shard_p\n"
        "  %index = zext i16 %shard to i64\n"
        f"  %distance = mul i64 %index, -{RECORD_BYTES}\n"
        "  %first = getelementptr i8, ptr %object, i64 %distance\n"
        f"  %live_p = getelementptr i8, ptr %first, i64 {offset('live')}\n"
        "  %live = atomicrmw sub ptr %live_p, i32 1 acq_rel\n"
        "  %last = icmp eq i32 %live, 1\n"
        "  br i1 %last, label %ended, label %others\n"
        "others:\n  ret ptr null\n"
        f"ended:\n  %small_p = getelementptr i8, ptr %first, i64 {offset('small')}\n"
        "  %small = load i8, ptr %small_p\n"
        "  %large = icmp eq i8 %small, 0\n"
        "  br i1 %large, label %python, label %listed\n"
        f"listed:\n  %spec_p = getelementptr i8, ptr %first, i64 {offset('spec')}\n"
        "  %spec = load i64, ptr %spec_p\n"
        "  %dressed = icmp eq i64 %spec, 0\n"
        f"  %list = select i1 %dressed, ptr {words['destroyed']}, ptr {words['destroyed_bare']}\n"
        f"  %next_p = getelementptr i8, ptr %first, i64 {offset('dims')}\n"
        "  %top = load atomic i64, ptr %list monotonic, align 8\n"
        "  %record = ptrtoint ptr %first to i64\n"
        "  br label %push\n"
        "push:\n  %next = phi i64 [ %top, %listed ], [ %present, %push ]\n"
        "  store i64 %next, ptr %next_p\n"
        "  %pair = cmpxchg ptr %list, i64 %next, i64 %record acq_rel monotonic\n"
        "  %present = extractvalue { i64, i1 } %pair, 0\n"
        "  %pushed = extractvalue { i64, i1 } %pair, 1\n"
        "  br i1 %pushed, label %others, label %push\n"
        f"python:\n{_go_on(words, callback, BUFFER_DESTROY_LAST)}"
    )
