"""What to do about a compiler's errors that only BPF has: C that this processor cannot run.

The patterns are the words of clang 14 to 22; each is answered with one sentence.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple


class Advice(NamedTuple):
    """Where one of `patterns` is in what the compiler says, `text` is what to do."""

    patterns: Sequence[str]
    text: str


_LIBRARY = r"(?:mem(?:cpy|set|move|cmp)|str\w+|[fsv]?n?printf|malloc|free)"

TABLE: Sequence[Advice] = (
    Advice(
        [r"too many arg", r"stack arguments are not supported", r"pass by value not supported"],
        "a function takes at most five arguments, in registers: give it a pointer to a struct, or "
        "make it `static inline` so that there is no call",
    ),
    Advice(
        [r"BPF stack limit"],
        "a function's variables have 512 bytes of stack: make large ones `static`, or use a part "
        "of the output buffer",
    ),
    Advice(
        [r"dynamic stack allocation"],
        "an array's length must be a constant: there is no stack that grows while a program runs",
    ),
    Advice(
        [r"built-in function '__\w*[sdtx]f\d?\w*'", r"floating.point"],
        "there is no floating point: compute with integers in fixed point, or let a model do it "
        "(tflite_apu, tflite_vta)",
    ),
    Advice(
        [r"built-in function '__\w*ti\d?'", r"function '__multi3'"],
        "there are no 128-bit integers: multiply and divide in 64 bits",
    ),
    Advice(
        [rf"built-in function '{_LIBRARY}'"],
        "there is no C library, and copying or clearing a large struct or array calls one: "
        "write a loop over its elements",
    ),
    Advice(
        [r"VarArgs", r"variadic functions are not supported", r"= vaarg"],
        "functions with a variable number of arguments are not possible: pass an array and its "
        "length",
    ),
    Advice(
        [r"StructRet", r"aggregate returns", r"only small returns", r"allocate function return"],
        "a function returns at most 8 bytes: let it fill a struct that it is given a pointer to",
    ),
    Advice(
        [r"[Uu]nsupport(?:ed)? signed division", r"= sdiv ", r"= srem "],
        "this compiler cannot divide signed numbers for BPF: make both operands unsigned, or use "
        "clang 18 or later, or ziglang",
    ),
    Advice(
        [r"thread-local storage"],
        "there are no threads, and no thread-local variables: make it `static`",
    ),
    Advice(
        [r"Cannot select:.*brind", r"jumps? (?:through a table|to a computed address)"],
        "there is no computed goto: write a switch",
    ),
    Advice(
        [r"Cannot select:.*Atomic"],
        "only add, and, or, xor, exchange and compare-and-exchange are atomic, on 32 or 64 bits",
    ),
    Advice(
        [r"XADD return value"],
        "what an atomic operation returns is there from version 3 of the instruction set on: "
        "build with --cpu v3",
    ),
    Advice(
        [r"fatal error: 'potash\.h' file not found"],
        "name the folder that has potash.h with -I",
    ),
    Advice(
        [
            r"fatal error: '(?!potash\.h)[^']+' file not found",
            rf"undeclared (?:library )?function '{_LIBRARY}'",
            rf"declaring library function '{_LIBRARY}'",
            rf"implicit declaration of function '{_LIBRARY}'",
            rf"'{_LIBRARY}' is neither in the object nor a helper",
        ],
        "there is no C library and none of its headers: potash.h has what there is to include, and "
        "-I names further folders",
    ),
    Advice(
        [rf"'(?!{_LIBRARY}')[^']+' is neither in the object nor a helper"],
        "a program stands alone: define what it uses in the same file, or include it",
    ),
    Advice(
        [r"has no global function"],
        "a program begins with `prog`, or with its first function that is not static",
    ),
    Advice(
        [r"is not in a section that is part of the program"],
        "a variable may be in a section of its own only if that is part of the program's data: "
        "leave the section away",
    ),
    Advice(
        [r"more than \d+ bytes of (?:code|data|rodata)"],
        "large tables belong into the input buffer, and large results into the output buffer",
    ),
)


def advice(said: str) -> list[str]:
    """A sentence for each kind of trouble that is in what the compiler or the linker said."""
    return [row.text for row in TABLE if any(re.search(pattern, said) for pattern in row.patterns)]


_CRASH = re.compile(
    r"PLEASE (?:submit|ATTACH)|^Stack dump|^\d+\.\t|^ ?#\d+ |^\*{5,}|note: diagnostic msg"
    r"|: error: clang frontend command failed"
    r"|^(?:[\w ]*clang version|Target:|Thread model:|InstalledDir:)"
    r"|^Preprocessed source|^ +0x[0-9a-f]+: |^ *In function: |could not determine the original"
    r"|symbolizer|^\S*(?:clang|zig)\S*\(|^$"
)


def readable(said: str) -> str:
    """What a compiler said, without what it says of itself where it gives up."""
    lines = [line for line in said.splitlines() if not _CRASH.search(line)]
    return "\n".join(re.sub(r"\b0x[0-9a-f]{6,}: ", "", line) for line in lines)
