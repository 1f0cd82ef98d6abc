"""A host application that knows nothing of Potash, run in the guest by `test_stranger.py`.

It does with ioctls on the block device what the original platform's published host does ("Alkali
CSD platform documentation", chapter 4, gives the commands), and keeps its habits: it sends
namespace 1 with admin commands too, takes no notice of errors, polls every 100 ms for status 2, and
has asked for 4096 blocks of output when it reads one. Usage: stranger.py DEVICE PROGRAM INPUT
OUTPUT.
"""

import ctypes
import fcntl
import mmap
import os
import struct
import sys
import time

# linux/nvme_ioctl.h: _IOWR('N', 0x41 and 0x43, struct nvme_passthru_cmd), which has 72 bytes.
ADMIN, IO = 0xC0484E41, 0xC0484E43
BLOCK = 4096
OUTPUT_BLOCKS = 4096
DONE = 2
POLLS = 600


class Buffer:
    """Page aligned memory, as O_DIRECT wants it, of which a command uses the first `size` bytes."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.memory = mmap.mmap(-1, -(-size // BLOCK) * BLOCK)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))


def command(
    device: int, request: int, opcode: int, buffer: Buffer | None = None, **cdws: int
) -> None:
    address, length = (buffer.address, buffer.size) if buffer else (0, 0)
    cdw = [cdws.get(f"cdw{number}", 0) for number in range(10, 16)]
    # opcode, flags, rsvd1, nsid, cdw2, cdw3, metadata, addr, metadata_len, data_len, cdw10 to
    # cdw15, timeout_ms, result
    packed = bytearray(
        struct.pack("<BBHIIIQQII6III", opcode, 0, 0, 1, 0, 0, 0, address, 0, length, *cdw, 0, 0)
    )
    try:
        fcntl.ioctl(device, request, packed)
    except OSError as error:
        print(f"{opcode:02x}: {error}", file=sys.stderr)


def main(path: str, program: str, input_path: str, output_path: str) -> None:
    device = os.open(path, os.O_RDWR | os.O_DIRECT)
    with open(input_path, "rb") as file:
        data = file.read()
    with open(program, "rb") as file:
        code = file.read()
    blocks = -(-len(data) // BLOCK)

    source = Buffer(blocks * BLOCK)
    source.memory[: len(data)] = data
    os.pwritev(device, [source.memory], 0)

    head = Buffer(16)
    command(device, ADMIN, 0xC2, head, cdw10=4)
    magic, length = struct.unpack_from("<4sI", head.memory)
    whole = Buffer(length)
    command(device, ADMIN, 0xC2, whole, cdw10=length // 4)
    print(magic.decode(), *struct.unpack_from("<IH", whole.memory, 16))

    command(device, ADMIN, 0xC0, cdw12=0)
    firmware = Buffer(len(code))
    firmware.memory[: len(code)] = code
    command(device, IO, 0x85, firmware, cdw10=len(code) // 4, cdw12=0, cdw13=0)
    command(device, IO, 0x88, cdw12=0, cdw13=0, cdw14=blocks, cdw15=0)
    command(device, IO, 0x8C, cdw12=blocks, cdw13=0, cdw14=OUTPUT_BLOCKS, cdw15=0)
    command(device, IO, 0x91, cdw12=0, cdw13=3, cdw14=0)
    command(device, IO, 0x91, cdw12=0, cdw13=1, cdw14=0)
    answer = Buffer(32)
    for _ in range(POLLS):
        command(device, ADMIN, 0xC6, answer, cdw10=8, cdw12=0)
        if struct.unpack_from("<I", answer.memory, 4)[0] == DONE:
            break
        time.sleep(0.1)

    result = Buffer(BLOCK)
    os.preadv(device, [result.memory], blocks * BLOCK)
    with open(output_path, "wb") as file:
        file.write(result.memory[:BLOCK])


if __name__ == "__main__":
    main(*sys.argv[1:])
