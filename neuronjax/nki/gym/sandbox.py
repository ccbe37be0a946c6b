"""What Linux itself refuses a process: files with Landlock, system calls with seccomp.

Sources: Linux, Documentation/userspace-api/landlock.rst and seccomp_filter.rst.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
"""System calls, the same on all architectures."""
_VERSION_FLAG, _PATH_BENEATH = 1, 1
_NO_NEW_PRIVILEGES, _SECCOMP, _FILTER = 38, 22, 2

_READING = 1 << 0 | 1 << 2 | 1 << 3
"""Execute (a shared library is mapped so), read a file, read a folder."""
_FILE_RIGHTS: Mapping[int, int] = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1}
"""Version of Landlock -> all rights of files; from 3 on the same, but for devices."""
_NET_RIGHTS = 1 << 0 | 1 << 1
"""Bind and connect TCP sockets, from version 4 on."""
_SCOPES = 1 << 0 | 1 << 1
"""Abstract Unix sockets and signals, from version 6 on."""

_ARCHITECTURES: Mapping[str, tuple[int, tuple[int, ...]]] = {
    "x86_64": (0xC000003E, (41, 59, 322, 101, 311, 425)),
    "aarch64": (0xC00000B7, (198, 221, 281, 117, 271, 425)),
}
"""Machine -> its number in a filter, and its system calls socket, execve, execveat, ptrace,
process_vm_writev and io_uring_setup."""
_KILL, _ALLOW = 0x80000000, 0x7FFF0000
_LOAD, _IS_EQUAL, _IS_ABOVE, _RETURN = 0x20, 0x15, 0x35, 0x06
_X32 = 0x40000000


def confine(folder: Path, readable: Sequence[Path]) -> tuple[str, ...]:
    """Confines this process: it writes below `folder` alone, reads there and below `readable`, and
    opens no socket and starts no program. Returns the names of what the system knows of this."""
    if platform.system() != "Linux":
        return ()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0):
        return ()
    done = []
    if _landlock(libc, folder, readable):
        done.append("landlock")
    if _filter_calls(libc):
        done.append("seccomp")
    return tuple(done)


def _landlock(libc: ctypes.CDLL, folder: Path, readable: Sequence[Path]) -> bool:
    version = libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint(_VERSION_FLAG))
    if version < 1:
        return False
    rights = _FILE_RIGHTS[min(version, 3)]
    net, scopes = _NET_RIGHTS * (version >= 4), _SCOPES * (version >= 6)
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    attributes = struct.pack("=QQQ", rights, net, scopes)[:size]
    rules = libc.syscall(_CREATE_RULESET, attributes, ctypes.c_size_t(size), ctypes.c_uint(0))
    if rules < 0:
        return False
    reading = [(root, _READING) for root in readable]
    for path, right in [(folder, rights), (Path(os.devnull), 1 << 1 | 1 << 2), *reading]:
        _allow(libc, rules, path, right)
    done: int = libc.syscall(_RESTRICT_SELF, rules, ctypes.c_uint(0))
    os.close(rules)
    return done == 0


def _allow(libc: ctypes.CDLL, rules: int, path: Path, right: int) -> None:
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return  # what is not there needs no rule
    if not path.is_dir():
        right &= 1 << 0 | 1 << 1 | 1 << 2 | 1 << 14
    beneath = struct.pack("=Qi", right, place)
    libc.syscall(_ADD_RULE, rules, ctypes.c_int(_PATH_BENEATH), beneath, ctypes.c_uint(0))
    os.close(place)


def _filter_calls(libc: ctypes.CDLL) -> bool:
    known = _ARCHITECTURES.get(platform.machine())
    if known is None:
        return False
    code = b"".join(struct.pack("=HBBI", *step) for step in _steps(*known))
    steps = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("@HxxxxxxQ", len(code) // 8, ctypes.addressof(steps))
    result: int = libc.prctl(_SECCOMP, _FILTER, program, 0, 0)
    return result == 0


def _steps(architecture: int, calls: Sequence[int]) -> Iterator[tuple[int, int, int, int]]:
    """A filter in classic BPF: operation, steps to skip if so and if not, operand. The number of a
    system call is at byte 0 of what it sees, the architecture at byte 4."""
    yield _LOAD, 0, 0, 4
    yield _IS_EQUAL, 1, 0, architecture
    yield _RETURN, 0, 0, _KILL
    yield _LOAD, 0, 0, 0
    for number, call in enumerate((_X32, *calls)):
        yield (_IS_ABOVE if call == _X32 else _IS_EQUAL), len(calls) - number + 1, 0, call
    yield _RETURN, 0, 0, _ALLOW
    yield _RETURN, 0, 0, _KILL
