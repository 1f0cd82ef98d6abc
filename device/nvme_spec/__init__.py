"""The NVMe standard as data: no behaviour, no I/O, nothing but the standard library.

Registers, opcodes, status codes, queue entries, identify and log structures of the NVM Express
Base Specification 2.0 and the NVM Command Set Specification 1.0, each named as in the standard.
0's based fields end in `_z`. Reserved bytes and unknown values survive a decode.
"""
