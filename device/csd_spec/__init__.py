"""The accelerator command set as data: no behaviour, no I/O, only the standard library.

Opcodes, command dword fields, status codes and the structures that the vendor specific commands of
a computational storage device carry, little endian throughout. The source is the "Alkali CSD
platform documentation", chapter 4 (NVMe commands and extensions); what this project adds to it is
marked as an extension where it is declared. `docs/commands.md` is the same as prose.
"""
