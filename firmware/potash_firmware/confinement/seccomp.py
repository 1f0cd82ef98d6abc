"""A seccomp filter from a table of rules: seccomp(2),
Documentation/userspace-api/seccomp_filter.rst.

Any call that is not in the table kills the process, and so does any call of another ABI (32-bit,
x32).
"""

import ctypes
import errno
import os
import sys
from collections.abc import Mapping
from typing import NamedTuple

from potash_firmware.confinement import system_calls
from potash_firmware.confinement.kernel import prctl
from potash_wire.records import U8, U16, U32, Record

PR_SET_SECCOMP = 22
SECCOMP_MODE_FILTER = 2

KILL_PROCESS = 0x80000000
ERRNO = 0x00050000
ALLOW = 0x7FFF0000
"""Return values of a filter (linux/seccomp.h)."""

LOAD, JUMP_EQUAL, JUMP_AT_LEAST, AND, RETURN = 0x20, 0x15, 0x35, 0x54, 0x06
"""Instructions of classic BPF: the word at an offset, jumps on a constant (linux/bpf_common.h)."""

NUMBER_AT, MACHINE_AT, ARGUMENTS_AT = 0, 4, 16
"""Offsets in struct seccomp_data."""

X32_CALLS = 0x40000000

_INSTRUCTIONS = Record(tuple[U16, U8, U8, U32])
"""Opcode, instructions to skip if the condition holds and if not, constant."""


class Machine(NamedTuple):
    """A machine's number in seccomp (linux/audit.h), and its column in `NUMBERS`."""

    audit: int
    column: int


MACHINES = {"x86_64": Machine(0xC000003E, 0), "aarch64": Machine(0xC00000B7, 1)}


def machine() -> Machine | None:
    """The one that this process runs on; None where no filter can be made for it."""
    return MACHINES.get(os.uname().machine) if sys.maxsize > 1 << 32 else None


def supported() -> bool:
    """True if this kernel accepts filters, on a machine for which they can be made."""
    if machine() is None:
        return False
    try:
        # A filter of nothing is refused after the mode was found to be there.
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, 0)
    except OSError as error:
        return error.errno == errno.EFAULT
    return True


def assemble(rules: Mapping[str, system_calls.Rule], machine: Machine) -> bytes:
    """The filter that holds a process on `machine` to `rules`."""
    code = [
        (LOAD, 0, 0, MACHINE_AT),
        (JUMP_EQUAL, 1, 0, machine.audit),
        (RETURN, 0, 0, KILL_PROCESS),
        (LOAD, 0, 0, NUMBER_AT),
        (JUMP_AT_LEAST, 0, 1, X32_CALLS),
        (RETURN, 0, 0, KILL_PROCESS),
    ]
    for name, rule in rules.items():
        number = system_calls.NUMBERS[name][machine.column]
        if number is not None:
            body = _body(rule)
            code += [(JUMP_EQUAL, 0, len(body), number), *body]
    code.append((RETURN, 0, 0, KILL_PROCESS))
    return b"".join(map(_INSTRUCTIONS.encode, code))


def install(code: bytes) -> None:
    """Hold this process to a filter for ever. It must have no new privileges. Raises OSError."""
    contents = ctypes.create_string_buffer(code, len(code))
    program = _Program(len(code) // _INSTRUCTIONS.size, ctypes.addressof(contents))
    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.addressof(program))


class _Program(ctypes.Structure):
    """struct sock_fprog (linux/filter.h)."""

    _fields_ = [("length", ctypes.c_ushort), ("code", ctypes.c_void_p)]


_Instruction = tuple[int, int, int, int]


def _body(rule: system_calls.Rule) -> list[_Instruction]:
    refuse = (RETURN, 0, 0, ERRNO | rule.error)
    code: list[_Instruction] = []
    for condition in rule.conditions:
        code += _unless(condition, refuse)
    return [*code, (RETURN, 0, 0, ALLOW)]


def _unless(condition: system_calls.Condition, refuse: _Instruction) -> list[_Instruction]:
    """Refuse unless the condition holds; go on behind it otherwise."""
    load = (LOAD, 0, 0, ARGUMENTS_AT + 8 * condition.argument)
    match condition:
        case system_calls.Masked(_, mask, value):
            return [load, (AND, 0, 0, mask), (JUMP_EQUAL, 1, 0, value), refuse]
        case system_calls.OneOf(_, values):
            count = len(values)
            jumps = [(JUMP_EQUAL, count - at, 0, value) for at, value in enumerate(values)]
            return [load, *jumps, refuse]
        case system_calls.Other(_, values, mask):
            last = len(values) - 1
            jumps = [
                (JUMP_EQUAL, last - at, int(at == last), value) for at, value in enumerate(values)
            ]
            return [load, (AND, 0, 0, mask), *jumps, refuse]
        case system_calls.Null():
            high = (LOAD, 0, 0, ARGUMENTS_AT + 8 * condition.argument + 4)
            return [load, (JUMP_EQUAL, 0, 2, 0), high, (JUMP_EQUAL, 1, 0, 0), refuse]
