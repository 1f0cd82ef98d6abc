"""Programs and the value of r0 at their end, for each instruction of RFC 9669.

Written from the RFC's text alone; the numbers of sections are its. An operand that is a number is
sign extended from 32 bits, so each row of the tables of operands is also tried as an immediate
wherever it fits.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from support.bpf import exit_, insn
from support.bpf_assembler import assemble


class Vector(NamedTuple):
    """`code` run on `memory`, whose address is in r1 and whose length is in r2, leaves `value`."""

    name: str
    code: bytes
    value: int
    memory: bytes = b""


F = 0xFFFF_FFFF_FFFF_FFFF

# Section 4.1: operation, dst, src; what is left in 64 bits, and in 32
ALU = [
    ("+=", 1, 2, 3, 3),
    ("+=", F, 1, 0, 0),
    ("+=", 0xFFFF_FFFF, 1, 0x1_0000_0000, 0),
    ("+=", 0x7FFF_FFFF, 0x7FFF_FFFF, 0xFFFF_FFFE, 0xFFFF_FFFE),
    ("+=", 0x1_0000_0005, F, 0x1_0000_0004, 4),
    ("-=", 0, 1, F, 0xFFFF_FFFF),
    ("-=", 0x1_0000_0000, 1, 0xFFFF_FFFF, 0xFFFF_FFFF),
    ("-=", 5, 0xFFFF_FFFF_FFFF_FFFB, 10, 10),
    ("*=", 0x1_0000_0003, 5, 0x5_0000_000F, 15),
    ("*=", F, F, 1, 1),
    ("*=", 0x8000_0000, 2, 0x1_0000_0000, 0),
    ("*=", 0xFFFF_FFFF_0000_0000, 0x1_0000_0001, 0xFFFF_FFFF_0000_0000, 0),
    ("/=", 100, 7, 14, 14),
    ("/=", 0x1_0000_0064, 7, 0x2492_4932, 14),
    ("/=", F, 2, 0x7FFF_FFFF_FFFF_FFFF, 0x7FFF_FFFF),
    ("/=", 0xFFFF_FFFF_FFFF_FFF8, 0xFFFF_FFFF_FFFF_FFFE, 0, 0),
    ("/=", 0xFFFF_FFFF_FFFF_FFFE, 0xFFFF_FFFF_FFFF_FFFE, 1, 1),
    ("/=", 77, 0, 0, 0),
    ("/=", 77, 0x1_0000_0000, 0, 0),
    ("s/=", 100, 7, 14, 14),
    ("s/=", 0xFFFF_FFFF_FFFF_FFF9, 2, 0xFFFF_FFFF_FFFF_FFFD, 0xFFFF_FFFD),
    ("s/=", 7, 0xFFFF_FFFF_FFFF_FFFE, 0xFFFF_FFFF_FFFF_FFFD, 0xFFFF_FFFD),
    ("s/=", 0xFFFF_FFFF_FFFF_FFF9, 0xFFFF_FFFF_FFFF_FFFE, 3, 3),
    ("s/=", 0x8000_0000, F, 0xFFFF_FFFF_8000_0000, 0x8000_0000),
    ("s/=", 0x8000_0000_0000_0000, F, 0x8000_0000_0000_0000, 0),
    ("s/=", 0xFFFF_FFFF_FFFF_FFF9, 0, 0, 0),
    ("|=", 0x1_0000_00F0, 0x0F, 0x1_0000_00FF, 0xFF),
    ("|=", 0, 0xFFFF_FFFF_8000_0000, 0xFFFF_FFFF_8000_0000, 0x8000_0000),
    ("&=", 0xFFFF_FFFF_0000_FFFF, 0xF0F0, 0xF0F0, 0xF0F0),
    ("&=", 0x1234_5678_9ABC_DEF0, 0xFFFF_FFFF_FFFF_FF00, 0x1234_5678_9ABC_DE00, 0x9ABC_DE00),
    ("^=", 0x1_0000_00FF, 0x0F, 0x1_0000_00F0, 0xF0),
    ("^=", 0x5555_5555_5555_5555, F, 0xAAAA_AAAA_AAAA_AAAA, 0xAAAA_AAAA),
    ("<<=", 1, 31, 0x8000_0000, 0x8000_0000),
    ("<<=", 0x8000_0001, 1, 0x1_0000_0002, 2),
    ("<<=", 1, 63, 0x8000_0000_0000_0000, 0x8000_0000),
    ("<<=", 3, 64, 3, 3),
    ("<<=", 3, 33, 0x6_0000_0000, 6),
    ("<<=", 3, F, 0x8000_0000_0000_0000, 0x8000_0000),
    (">>=", 0x8000_0000_8000_0000, 4, 0x0800_0000_0800_0000, 0x0800_0000),
    (">>=", F, 63, 1, 1),
    (">>=", 0xF0, 64, 0xF0, 0xF0),
    (">>=", 0xF_0000_00F0, 36, 0, 0x0F),
    ("s>>=", 0x8000_0000_8000_0000, 4, 0xF800_0000_0800_0000, 0xF800_0000),
    ("s>>=", 0x7000_0000_7000_0000, 4, 0x0700_0000_0700_0000, 0x0700_0000),
    ("s>>=", 0x8000_0000_0000_0000, 63, F, 0),
    ("s>>=", 0xFFFF_FFFF_FFFF_FF00, 64, 0xFFFF_FFFF_FFFF_FF00, 0xFFFF_FF00),
    ("s>>=", 0xFFFF_FF00, 36, 0, 0xFFFF_FFF0),
    ("%=", 100, 7, 2, 2),
    ("%=", 0x1_0000_0064, 7, 6, 2),
    ("%=", F, 16, 15, 15),
    ("%=", 5, 0xFFFF_FFFF_FFFF_FFFE, 5, 5),
    ("%=", 0x2_0000_004D, 0, 0x2_0000_004D, 0x4D),
    ("s%=", 0xFFFF_FFFF_FFFF_FFF9, 2, F, 0xFFFF_FFFF),
    ("s%=", 7, 0xFFFF_FFFF_FFFF_FFFE, 1, 1),
    ("s%=", 0xFFFF_FFFF_FFFF_FFF3, 3, F, 0xFFFF_FFFF),
    ("s%=", 0xFFFF_FFFF_FFFF_FFF3, 0xFFFF_FFFF_FFFF_FFFD, F, 0xFFFF_FFFF),
    ("s%=", 0x8000_0000_0000_0000, F, 0, 0),
    ("s%=", 0xFFFF_FFFF_8000_0000, F, 0, 0),
    ("s%=", 0xFFFF_FFFF_FFFF_FFF9, 0, 0xFFFF_FFFF_FFFF_FFF9, 0xFFFF_FFF9),
    ("=", 0x1111_1111_1111_1111, 5, 5, 5),
    ("=", 0x1111_1111_1111_1111, 0xFFFF_FFFF_8000_0000, 0xFFFF_FFFF_8000_0000, 0x8000_0000),
    ("=", 0x1111_1111_1111_1111, F, F, 0xFFFF_FFFF),
]

# Section 4.1, one operand: what is done to r0, its value before and after
UNARY = [
    ("r0 = -r0", 5, 0xFFFF_FFFF_FFFF_FFFB),
    ("r0 = -r0", 0, 0),
    ("r0 = -r0", 0x8000_0000_0000_0000, 0x8000_0000_0000_0000),
    ("w0 = -w0", 5, 0xFFFF_FFFB),
    ("w0 = -w0", 0x1_0000_0000, 0),
    ("w0 = -w0", 0xFFFF_FFFF_8000_0000, 0x8000_0000),
    ("r0 = (s8)r0", 0x1234_5680, 0xFFFF_FFFF_FFFF_FF80),
    ("r0 = (s8)r0", 0xFFFF_FF7F, 0x7F),
    ("r0 = (s16)r0", 0x1234_8000, 0xFFFF_FFFF_FFFF_8000),
    ("r0 = (s16)r0", 0xFFFF_7FFF, 0x7FFF),
    ("r0 = (s32)r0", 0x1_8000_0000, 0xFFFF_FFFF_8000_0000),
    ("r0 = (s32)r0", 0xF_7FFF_FFFF, 0x7FFF_FFFF),
    ("w0 = (s8)w0", 0xFFFF_FFFF_FFFF_FF80, 0xFFFF_FF80),
    ("w0 = (s8)w0", 0xFFFF_FFFF_FFFF_FF7F, 0x7F),
    ("w0 = (s16)w0", 0xFFFF_FFFF_0000_8000, 0xFFFF_8000),
    ("w0 = (s16)w0", 0xFFFF_FFFF_FFFF_7FFF, 0x7FFF),
    # Section 4.2: the host is little endian
    ("r0 = le16 r0", 0x1122_3344_5566_7788, 0x7788),
    ("r0 = le32 r0", 0x1122_3344_5566_7788, 0x5566_7788),
    ("r0 = le64 r0", 0x1122_3344_5566_7788, 0x1122_3344_5566_7788),
    ("r0 = be16 r0", 0x1122_3344_5566_7788, 0x8877),
    ("r0 = be32 r0", 0x1122_3344_5566_7788, 0x8877_6655),
    ("r0 = be64 r0", 0x1122_3344_5566_7788, 0x8877_6655_4433_2211),
    ("r0 = bswap16 r0", 0x1122_3344_5566_7788, 0x8877),
    ("r0 = bswap32 r0", 0x1122_3344_5566_7788, 0x8877_6655),
    ("r0 = bswap64 r0", 0x1122_3344_5566_7788, 0x8877_6655_4433_2211),
]

# Section 4.3: comparison, dst, src; whether it holds in 64 bits, and in 32
JUMPS = [
    ("==", 5, 5, True, True),
    ("==", 0x1_0000_0005, 5, False, True),
    ("==", 0xFFFF_FFFF, F, False, True),
    ("==", F, F, True, True),
    ("!=", 5, 5, False, False),
    ("!=", 0x1_0000_0005, 5, True, False),
    ("!=", 5, 6, True, True),
    (">", 5, 5, False, False),
    (">", 6, 5, True, True),
    (">", 5, F, False, False),
    (">", F, 0x7FFF_FFFF, True, True),
    (">", 0x1_0000_0000, 5, True, False),
    (">=", 5, 5, True, True),
    (">=", 4, 5, False, False),
    (">=", F, 5, True, True),
    (">=", 0x1_0000_0000, 5, True, False),
    ("<", 5, 5, False, False),
    ("<", 4, 5, True, True),
    ("<", 5, F, True, True),
    ("<", 0x1_0000_0000, 5, False, True),
    ("<=", 5, 5, True, True),
    ("<=", 6, 5, False, False),
    ("<=", F, 5, False, False),
    ("<=", 0x1_0000_0000, 5, False, True),
    ("s>", 5, 5, False, False),
    ("s>", 0, F, True, True),
    ("s>", F, 0, False, False),
    ("s>", 0x8000_0000, 0, True, False),
    ("s>", 0x7FFF_FFFF_8000_0000, F, True, False),
    ("s>=", 5, 5, True, True),
    ("s>=", F, F, True, True),
    ("s>=", 0xFFFF_FFFF_FFFF_FFFE, F, False, False),
    ("s>=", 0x8000_0000, 0, True, False),
    ("s<", 5, 5, False, False),
    ("s<", F, 0, True, True),
    ("s<", 0, F, False, False),
    ("s<", 0x8000_0000, 0, False, True),
    ("s<=", 5, 5, True, True),
    ("s<=", 0xFFFF_FFFF_FFFF_FFFE, F, True, True),
    ("s<=", 0, F, False, False),
    ("s<=", 0x8000_0000, 0, False, True),
    ("&", 6, 4, True, True),
    ("&", 6, 9, False, False),
    ("&", 0x1_0000_0000, F, True, False),
    ("&", 0, F, False, False),
]

_MEMORY = bytes.fromhex("01 82 03 84 05 86 07 88 f1 e2 d3 c4 b5 a6 97 88")

# What does not fit a table of operands: name, program, value, memory
PROGRAMS = [
    ("exit returns r0", "r0 = 42\nexit", 42, b""),
    ("exit in the middle", "r0 = 1\nif r0 == 1 goto a\nr0 = 2\nexit\na:\nr0 = 3\nexit", 3, b""),
    ("r1 and r2 are the memory and its length", "r0 = r2\nexit", 16, _MEMORY),
    ("goto skips", "r0 = 1\ngoto end\nr0 = 2\nend:\nexit", 1, b""),
    ("gotol skips", "r0 = 1\ngotol end\nr0 = 2\nend:\nexit", 1, b""),
    (
        "goto goes back",
        "r0 = 0\nr3 = 5\nloop:\nr0 += r3\nr3 += -1\nif r3 == 0 goto end\ngoto loop\nend:\nexit",
        15,
        b"",
    ),
    (
        "gotol goes back",
        "r0 = 0\nr3 = 5\nloop:\nr0 += r3\nr3 += -1\nif r3 == 0 goto end\ngotol loop\nend:\nexit",
        15,
        b"",
    ),
    ("a jump of no distance", "r0 = 9\nif r0 == 9 goto +0\nexit", 9, b""),
    (
        "the loop of a factorial",
        "r0 = 1\nr3 = 1\nloop:\nr0 *= r3\nr3 += 1\nif r3 <= 20 goto loop\nexit",
        2432902008176640000,
        b"",
    ),
    # Section 4.3.1: calls
    ("a local call", "r1 = 20\nr2 = 22\ncall add\nexit\nadd:\nr0 = r1\nr0 += r2\nexit", 42, b""),
    (
        "a call of a call",
        "r1 = 1\ncall a\nr0 += 1\nexit\na:\nr1 += 1\ncall b\nr0 += 1\nexit\nb:\nr0 = r1\nexit",
        4,
        b"",
    ),
    (
        "r6 to r9 survive a call",
        (
            "r6 = 1\nr7 = 2\nr8 = 3\nr9 = 4\ncall f\nr0 = r6\nr0 += r7\nr0 += r8\nr0 += r9\nexit\n"
            "f:\nr6 = 0\nr7 = 0\nr8 = 0\nr9 = 0\nr0 = 0\nexit"
        ),
        10,
        b"",
    ),
    (
        "a recursion",
        (
            "r1 = 6\ncall fac\nexit\nfac:\nr6 = r1\nr0 = 1\nif r1 <= 1 goto end\nr1 += -1\ncall fac\n"
            "r0 *= r6\nend:\nexit"
        ),
        720,
        b"",
    ),
    (
        "each call has a stack frame of its own",
        (
            "*(u64 *)(r10 - 8) = 5\ncall f\nr0 = *(u64 *)(r10 - 8)\nexit\n"
            "f:\n*(u64 *)(r10 - 8) = 6\nr0 = 0\nexit"
        ),
        5,
        b"",
    ),
    (
        "a function writes through a pointer to its caller's frame",
        (
            "r1 = r10\nr1 += -8\ncall f\nr0 = *(u64 *)(r10 - 8)\nexit\n"
            "f:\n*(u64 *)(r1 + 0) = 77\nr0 = 0\nexit"
        ),
        77,
        b"",
    ),
    ("callx a function", "r3 = f ll\ncallx r3\nr0 += 1\nexit\nf:\nr0 = 8\nexit", 9, b""),
    # Section 5.1: regular loads and stores
    ("load u8", "r0 = *(u8 *)(r1 + 1)\nexit", 0x82, _MEMORY),
    ("load u16", "r0 = *(u16 *)(r1 + 2)\nexit", 0x8403, _MEMORY),
    ("load u32", "r0 = *(u32 *)(r1 + 4)\nexit", 0x8807_8605, _MEMORY),
    ("load u64", "r0 = *(u64 *)(r1 + 8)\nexit", 0x8897_A6B5_C4D3_E2F1, _MEMORY),
    ("load with a negative offset", "r1 += 8\nr0 = *(u8 *)(r1 - 8)\nexit", 1, _MEMORY),
    ("load unaligned", "r0 = *(u32 *)(r1 + 1)\nexit", 0x0584_0382, _MEMORY),
    ("load over its own base", "r1 = *(u8 *)(r1 + 0)\nr0 = r1\nexit", 1, _MEMORY),
    ("load from the end", "r1 += r2\nr0 = *(u8 *)(r1 - 1)\nexit", 0x88, _MEMORY),
    # Section 5.2: sign extending loads
    ("load s8", "r0 = *(s8 *)(r1 + 1)\nexit", 0xFFFF_FFFF_FFFF_FF82, _MEMORY),
    ("load s8, positive", "r0 = *(s8 *)(r1 + 0)\nexit", 1, _MEMORY),
    ("load s16", "r0 = *(s16 *)(r1 + 2)\nexit", 0xFFFF_FFFF_FFFF_8403, _MEMORY),
    ("load s16, positive", "r0 = *(s16 *)(r1 + 1)\nexit", 0x0382, _MEMORY),
    ("load s32", "r0 = *(s32 *)(r1 + 4)\nexit", 0xFFFF_FFFF_8807_8605, _MEMORY),
    ("load s32, positive", "r0 = *(s32 *)(r1 + 1)\nexit", 0x0584_0382, _MEMORY),
    (
        "store u8 of a register",
        "r3 = 0x1ff\n*(u8 *)(r1 + 0) = r3\nr0 = *(u64 *)(r1 + 0)\nexit",
        0x8807_8605_8403_82FF,
        _MEMORY,
    ),
    (
        "store u16 of a register",
        "r3 = 0x12345\n*(u16 *)(r1 + 2) = r3\nr0 = *(u64 *)(r1 + 0)\nexit",
        0x8807_8605_2345_8201,
        _MEMORY,
    ),
    (
        "store u32 of a register",
        "r3 = 0x123456789 ll\n*(u32 *)(r1 + 4) = r3\nr0 = *(u64 *)(r1 + 0)\nexit",
        0x2345_6789_8403_8201,
        _MEMORY,
    ),
    (
        "store u64 of a register",
        "r3 = 0x1122334455667788 ll\n*(u64 *)(r1 + 8) = r3\nr0 = *(u64 *)(r1 + 8)\nexit",
        0x1122_3344_5566_7788,
        _MEMORY,
    ),
    (
        "store u8 of a number",
        "*(u8 *)(r1 + 7) = -1\nr0 = *(u64 *)(r1 + 0)\nexit",
        0xFF07_8605_8403_8201,
        _MEMORY,
    ),
    (
        "store u16 of a number",
        "*(u16 *)(r1 + 0) = -2\nr0 = *(u32 *)(r1 + 0)\nexit",
        0x8403_FFFE,
        _MEMORY,
    ),
    (
        "store u32 of a number",
        "*(u32 *)(r1 + 0) = -2\nr0 = *(u64 *)(r1 + 0)\nexit",
        0x8807_8605_FFFF_FFFE,
        _MEMORY,
    ),
    (
        "store u64 of a number, which is sign extended",
        "*(u64 *)(r1 + 0) = -2\nr0 = *(u64 *)(r1 + 0)\nexit",
        0xFFFF_FFFF_FFFF_FFFE,
        _MEMORY,
    ),
    (
        "the stack, as far down as it goes",
        "*(u64 *)(r10 - 512) = 3\n*(u64 *)(r10 - 8) = 4\nr0 = *(u64 *)(r10 - 512)\nexit",
        3,
        b"",
    ),
    # Section 5.4: 64-bit immediates
    ("lddw", "r0 = 0x8877665544332211 ll\nexit", 0x8877_6655_4433_2211, b""),
    ("lddw of the halves' signs", "r0 = 0x00000000ffffffff ll\nexit", 0xFFFF_FFFF, b""),
    ("lddw is skipped whole", "r0 = 1\ngoto end\nr0 = 2 ll\nend:\nexit", 1, b""),
]

# Section 5.3: the operation on the memory and on r3 (and r0), what they hold before; then what the
# memory and the register that fetches hold, for 64 and for 32 bits
_OLD, _NEW = 0x1122_3344_F566_7788, 0x0F0F_0F0F_1A5A_5A5A
ATOMIC = [
    ("lock *(u64 *)(r1 + 0) += r3", "r3", 0x2031_4254_0FC0_D1E2, _NEW),
    ("lock *(u64 *)(r1 + 0) |= r3", "r3", 0x1F2F_3F4F_FF7E_7FDA, _NEW),
    ("lock *(u64 *)(r1 + 0) &= r3", "r3", 0x0102_0304_1042_5208, _NEW),
    ("lock *(u64 *)(r1 + 0) ^= r3", "r3", 0x1E2D_3C4B_EF3C_2DD2, _NEW),
    ("lock *(u32 *)(r1 + 0) += w3", "r3", 0x1122_3344_0FC0_D1E2, _NEW),
    ("lock *(u32 *)(r1 + 0) |= w3", "r3", 0x1122_3344_FF7E_7FDA, _NEW),
    ("lock *(u32 *)(r1 + 0) &= w3", "r3", 0x1122_3344_1042_5208, _NEW),
    ("lock *(u32 *)(r1 + 0) ^= w3", "r3", 0x1122_3344_EF3C_2DD2, _NEW),
    ("r3 = atomic_fetch_add((u64 *)(r1 + 0), r3)", "r3", 0x2031_4254_0FC0_D1E2, _OLD),
    ("r3 = atomic_fetch_or((u64 *)(r1 + 0), r3)", "r3", 0x1F2F_3F4F_FF7E_7FDA, _OLD),
    ("r3 = atomic_fetch_and((u64 *)(r1 + 0), r3)", "r3", 0x0102_0304_1042_5208, _OLD),
    ("r3 = atomic_fetch_xor((u64 *)(r1 + 0), r3)", "r3", 0x1E2D_3C4B_EF3C_2DD2, _OLD),
    ("w3 = atomic_fetch_add((u32 *)(r1 + 0), w3)", "r3", 0x1122_3344_0FC0_D1E2, 0xF566_7788),
    ("w3 = atomic_fetch_or((u32 *)(r1 + 0), w3)", "r3", 0x1122_3344_FF7E_7FDA, 0xF566_7788),
    ("w3 = atomic_fetch_and((u32 *)(r1 + 0), w3)", "r3", 0x1122_3344_1042_5208, 0xF566_7788),
    ("w3 = atomic_fetch_xor((u32 *)(r1 + 0), w3)", "r3", 0x1122_3344_EF3C_2DD2, 0xF566_7788),
    ("r3 = xchg_64(r1 + 0, r3)", "r3", _NEW, _OLD),
    ("w3 = xchg32_32(r1 + 0, w3)", "r3", 0x1122_3344_1A5A_5A5A, 0xF566_7788),
    ("r0 = 5\nr0 = cmpxchg_64(r1 + 0, r0, r3)", "r0", _OLD, _OLD),
    ("r0 = *(u64 *)(r1 + 0)\nr0 = cmpxchg_64(r1 + 0, r0, r3)", "r0", _NEW, _OLD),
    ("r0 = 5\nw0 = cmpxchg32_32(r1 + 0, w0, w3)", "r0", _OLD, 0xF566_7788),
    (
        "r0 = 0x77f5667788 ll\nw0 = cmpxchg32_32(r1 + 0, w0, w3)",
        "r0",
        0x1122_3344_1A5A_5A5A,
        0xF566_7788,
    ),
]


def _is_immediate(value: int) -> bool:
    """Whether a number of 32 bits can stand for this one."""
    return value < 1 << 31 or value >= (1 << 64) - (1 << 31)


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def _operands(dst: int, src: int) -> Iterator[tuple[str, str, str]]:
    """The ways to write an operand: its name, what comes before, the operand (with w for r)."""
    yield "reg", f"r0 = {dst} ll\nr2 = {src} ll\n", "r2"
    if _is_immediate(src):
        yield "imm", f"r0 = {dst} ll\n", str(_signed(src))


def _alu() -> Iterator[Vector]:
    for operation, dst, src, in_64, in_32 in ALU:
        for form, before, operand in _operands(dst, src):
            for letter, value in (("r", in_64), ("w", in_32)):
                line = f"{letter}0 {operation} {operand.replace('r', letter)}"
                name = f"{letter}0 {operation} {form}: {dst:#x}, {src:#x}"
                yield Vector(name, assemble(f"{before}{line}\nexit"), value)


def _unary() -> Iterator[Vector]:
    for line, before, after in UNARY:
        yield Vector(f"{line}: {before:#x}", assemble(f"r0 = {before} ll\n{line}\nexit"), after)


def _jumps() -> Iterator[Vector]:
    for comparison, dst, src, in_64, in_32 in JUMPS:
        for form, before, operand in _operands(dst, src):
            for letter, holds in (("r", in_64), ("w", in_32)):
                line = f"if {letter}0 {comparison} {operand.replace('r', letter)} goto yes"
                text = f"{before}{line}\nr0 = 0\nexit\nyes:\nr0 = 1\nexit"
                name = f"if {letter}0 {comparison} {form}: {dst:#x}, {src:#x}"
                yield Vector(name, assemble(text), int(holds))


def _programs() -> Iterator[Vector]:
    for name, text, value, memory in PROGRAMS:
        yield Vector(name, assemble(text), value, memory)


def _atomic() -> Iterator[Vector]:
    memory = _OLD.to_bytes(8, "little")
    for text, register, left, fetched in ATOMIC:
        name = text.replace("\n", "; ")
        begin = f"r3 = {_NEW} ll\n{text}\n"
        code = assemble(f"{begin}r0 = *(u64 *)(r1 + 0)\nexit")
        yield Vector(f"{name}: memory", code, left, memory)
        end = "exit" if register == "r0" else f"r0 = {register}\nexit"
        yield Vector(f"{name}: {register}", assemble(begin + end), fetched, memory)


VECTORS = [*_alu(), *_unary(), *_jumps(), *_programs(), *_atomic()]


def combined(vectors: Sequence[Vector]) -> bytes:
    """All of them as functions of one program, which calls the one whose number is in r3."""
    chooser, functions = b"", b""
    for number, vector in enumerate(vectors):
        call = 3 * number + 1
        target = 3 * len(vectors) + 1 + len(functions) // 8
        chooser += insn(0x55, 3, offset=2, imm=number)  # if r3 != number
        chooser += insn(0x85, src=1, imm=target - call - 1) + exit_
        functions += vector.code
    return chooser + exit_ + functions
