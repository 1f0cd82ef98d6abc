"""The functions that call compiled programs and that these call, compiled by LLVM once per process.

`enter` calls a program's function. While that runs, a SIGSEGV in the arena's reserved range ends
the program and nothing else: the signal handler goes back to `enter` by longjmp(3), which returns.
It does so only if the thread is in compiled code, and neither in a helper nor in the interpreter,
which are called through the functions here for that reason. Any other fault is left to the previous
handler: the fault is raised again when this one returns, and a signal that was sent is sent again.

Divisions of 128 bits, which LLVM expects of a compiler's own library, are those of libgcc, which
LLVM's own code in this process uses.
"""

import ctypes
import functools
import signal
import threading
from typing import Any, NamedTuple

from potash_device import object_code
from potash_firmware.bpf.errors import EngineUnavailable
from potash_firmware.bpf.native import compiler
from potash_firmware.bpf.native.context import SideExit, Word

_CODE_OFFSET, _ADDRESS_OFFSET = 8, 16
"""Offsets in a siginfo_t: of the code, which is not positive for a signal that a process has sent,
and of the address of a fault (asm-generic/siginfo.h, 64 bits)."""

_FLAGS = 0x4 | 0x0800_0000 | 0x4000_0000
"""SA_SIGINFO, SA_ONSTACK and SA_NODEFER: the handler is left by longjmp, so it blocks nothing."""

lock = threading.RLock()
"""Held around `enter`: the program that runs is a global variable of the code below."""


class Runtime(NamedTuple):
    """Addresses of functions, which hold for as long as `owner` lives."""

    enter: int
    call_helper: int
    resume: int
    owner: Any


@functools.cache
def load() -> Runtime:
    """The functions in this process. Raises EngineUnavailable."""
    binding = compiler.llvm()
    name = compiler.OBJECTS.name(b"runtime")
    contents = compiler.OBJECTS.load(name)
    if contents is None:
        contents = compiler.compile_assembly(_text(), _LIBRARY)
        compiler.OBJECTS.keep(name, contents)
    owner = object_code.load(contents)
    try:
        library = ctypes.CDLL("libgcc_s.so.1")
    except OSError as error:
        raise EngineUnavailable(f"there is no libgcc: {error}") from None
    for function in compiler.DIVISIONS:
        pointer = ctypes.cast(getattr(library, function), ctypes.c_void_p)
        binding.add_symbol(function, pointer.value)
    address = owner.get_function_address
    return Runtime(address("enter"), address("call_helper"), address("resume"), owner)


_LIBRARY = frozenset({"_setjmp", "longjmp", "sigaction", "pthread_self", "raise"})


def _word(word: Word) -> str:
    return f"  %{word.name.lower()} = getelementptr i64, ptr %context, i64 {word}\n"


def _callback(name: str, parameters: str, word: Word) -> str:
    """A function that calls the address in `word` of the context, which is not compiled code."""
    return f"""
define i64 @{name}({parameters}) {{
  %context = load ptr, ptr @context
{_word(word)}{_word(Word.ACTIVE)}\
  %callback = load ptr, ptr %{word.name.lower()}
  store volatile i64 0, ptr %active
  %value = call i64 %callback({parameters})
  store volatile i64 1, ptr %active
  ret i64 %value
}}
"""


_R = ", ".join(f"i64 %r{number}" for number in range(1, 6))


def _text() -> str:
    words = (Word.JUMP, Word.PREVIOUS, Word.ACTIVE, Word.THREAD)
    seen = (Word.ACTIVE, Word.THREAD, Word.LOW, Word.HIGH, Word.FAULT, Word.SIDE_EXIT)
    return "\n".join(
        (
            f"""
@context = internal global ptr null
@action = internal global {{ ptr, [16 x i64], i32, ptr }} {{
  ptr @fault, [16 x i64] zeroinitializer, i32 {_FLAGS}, ptr null
}}
declare i32 @_setjmp(ptr) returns_twice
declare void @longjmp(ptr, i32) noreturn
declare i32 @sigaction(i32, ptr, ptr)
declare i64 @pthread_self()
declare i32 @raise(i32)

define i64 @enter(ptr %function, ptr %context, ptr %memory, i64 %frame, {_R}) {{
  %outer = load ptr, ptr @context
  %buffer = alloca [64 x i64], align 16
  %before = alloca [64 x i64], align 16
{"".join(map(_word, words))}\
  %self = call i64 @pthread_self()
  store i64 %self, ptr %thread
  store ptr %buffer, ptr %jump
  store ptr %before, ptr %previous
  store volatile ptr %context, ptr @context
  %set = call i32 @sigaction(i32 {signal.SIGSEGV.value}, ptr @action, ptr %before)
  %again = call i32 @_setjmp(ptr %buffer) returns_twice
  %first = icmp eq i32 %again, 0
  br i1 %first, label %run, label %end
run:
  store volatile i64 1, ptr %active
  %value = call i64 %function(ptr %context, ptr %memory, i64 %frame, {_R})
  br label %end
end:
  %result = phi i64 [ %value, %run ], [ 0, %0 ]
  store volatile i64 0, ptr %active
  %reset = call i32 @sigaction(i32 {signal.SIGSEGV.value}, ptr %before, ptr null)
  store volatile ptr %outer, ptr @context
  ret i64 %result
}}

define internal void @fault(i32 %signal, ptr %info, ptr %user) {{
  %context = load volatile ptr, ptr @context
  %none = icmp eq ptr %context, null
  br i1 %none, label %end, label %look
look:
{"".join(map(_word, (*seen, Word.JUMP, Word.PREVIOUS)))}\
  %where = getelementptr i8, ptr %info, i64 {_ADDRESS_OFFSET}
  %at = load i64, ptr %where
  %running = load volatile i64, ptr %active
  %compiled = icmp ne i64 %running, 0
  %self = call i64 @pthread_self()
  %owner = load i64, ptr %thread
  %here = icmp eq i64 %self, %owner
  %first = load i64, ptr %low
  %behind = load i64, ptr %high
  %above = icmp uge i64 %at, %first
  %below = icmp ult i64 %at, %behind
  %inside = and i1 %above, %below
  %own = and i1 %compiled, %here
  %met = and i1 %inside, %own
  %what = getelementptr i8, ptr %info, i64 {_CODE_OFFSET}
  %code = load i32, ptr %what
  %real = icmp sgt i32 %code, 0
  %covered = and i1 %met, %real
  br i1 %covered, label %back, label %other
back:
  store i64 %at, ptr %fault
  store i64 {SideExit.FAULT.value}, ptr %side_exit
  %buffer = load ptr, ptr %jump
  call void @longjmp(ptr %buffer, i32 1)
  br label %end
other:
  %before = load ptr, ptr %previous
  %reset = call i32 @sigaction(i32 %signal, ptr %before, ptr null)
  br i1 %real, label %end, label %send
send:
  %sent = call i32 @raise(i32 %signal)
  br label %end
end:
  ret void
}}
""",
            _callback("call_helper", f"i64 %number, {_R}", Word.HELPER_CALLBACK),
            _callback("resume", "", Word.RESUME_CALLBACK),
        )
    )
