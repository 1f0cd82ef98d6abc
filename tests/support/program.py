"""Object files for tests: hand-assembled instructions in the least ELF that holds them.

Written from the ELF-64 object file format (headers, symbols) and the number of BPF in `elf.h`.
"""

import struct

EM_BPF = 247
SHT_PROGBITS, SHT_SYMTAB, SHT_STRTAB = 1, 2, 3
SHF_ALLOC_EXECINSTR = 2 | 4
GLOBAL_FUNCTION = 1 << 4 | 2


def object_file(code: bytes, padding: int = 0) -> bytes:
    """`code` as function `prog`, then a section of `padding` bytes that is not loaded."""
    names = b"\0.text\0.symtab\0.strtab\0.filler\0prog\0"
    symbols = bytes(24) + struct.pack(
        "<IBBHQQ", names.index(b"prog"), GLOBAL_FUNCTION, 0, 1, 0, len(code)
    )
    contents = [code, symbols, names, bytes(padding)]
    offsets = [64]
    for item in contents:
        offsets.append(offsets[-1] + len(item))
    name = {text: names.index(text) for text in (b".text", b".symtab", b".strtab", b".filler")}
    sections = [
        bytes(64),
        _section(name[b".text"], SHT_PROGBITS, SHF_ALLOC_EXECINSTR, offsets[0], len(code), align=8),
        _section(
            name[b".symtab"], SHT_SYMTAB, 0, offsets[1], len(symbols), link=3, info=1, entry=24
        ),
        _section(name[b".strtab"], SHT_STRTAB, 0, offsets[2], len(names)),
        _section(name[b".filler"], SHT_PROGBITS, 0, offsets[3], padding),
    ]
    header = struct.pack(
        "<4sBBB9xHHIQQQIHHHHHH",
        b"\x7fELF",
        2,
        1,
        1,
        1,
        EM_BPF,
        1,
        0,
        0,
        offsets[-1],
        0,
        64,
        0,
        0,
        64,
        len(sections),
        3,
    )
    return header + b"".join(contents) + b"".join(sections)


def _section(
    name: int,
    kind: int,
    flags: int,
    offset: int,
    size: int,
    *,
    link: int = 0,
    info: int = 0,
    align: int = 1,
    entry: int = 0,
) -> bytes:
    return struct.pack("<IIQQQQIIQQ", name, kind, flags, 0, offset, size, link, info, align, entry)
