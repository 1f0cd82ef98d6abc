"""Filter, infer and compress on the drive: as a chain, and with a round trip after each program.

    python chain.py DEVICE [--json]

writes a model and pictures of meters to the first blocks of DEVICE, which must hold nothing else.
"""

import json
import random
import struct
import sys
from pathlib import Path

import potash.sdk
from csd_spec.opcodes import PAGE_SIZE
from potash.sdk import Accelerator, Device

FOLDER = Path(__file__).parent
DIGITS = FOLDER.parent / "digits"
PROGRAMS = [FOLDER.parent / "filter/program.o", FOLDER / "infer.o", FOLDER / "compress.o"]
MODEL = (DIGITS / "model.tflite").read_bytes()

RECORD = struct.Struct("<QI52x64s")
"""Minute, camera, and an image of 8x8 pixels as the model takes it: 128 bytes."""
CAMERA_AT = 8
CAMERAS, MINUTES, CHOSEN = 16, 1024, 3
RECORDS_PAGE = 4
"""The page of the drive where the records begin; the model is before them."""
TIMEOUT = 300.0


def records() -> bytes:
    """A picture by each camera in each minute, of the digit that its meter then shows."""
    source, images = random.Random(1742), (DIGITS / "images.bin").read_bytes()
    by_digit: dict[int, list[bytes]] = {}
    for number, digit in enumerate((DIGITS / "labels.bin").read_bytes()):
        by_digit.setdefault(digit, []).append(images[64 * number : 64 * number + 64])
    return b"".join(
        RECORD.pack(minute, camera, source.choice(by_digit[minute // (40 + camera) % 10]))
        for minute in range(MINUTES)
        for camera in range(CAMERAS)
    )


def steps(device: Device) -> list[list[int]]:
    """The arguments of each program."""
    blocks = RECORDS_PAGE * PAGE_SIZE // device.block_size
    return [[CAMERAS * MINUTES, CAMERA_AT, CHOSEN, CHOSEN], [0, blocks, len(MODEL)], []]


def prepare(accelerator: Accelerator, size: int) -> None:
    """Send the programs; the input is in blocks, and the model in others that are granted."""
    accelerator.reset()
    for number, program in enumerate(PROGRAMS):
        accelerator.send_firmware(program.read_bytes(), number)
    accelerator.grant(0, RECORDS_PAGE)
    accelerator.use_local_input(RECORDS_PAGE, size // PAGE_SIZE)


def as_chain(accelerator: Accelerator, arguments: list[list[int]]) -> bytes:
    accelerator.start_chain(enumerate(arguments))
    accelerator.wait(TIMEOUT)
    return accelerator.read_output()


def with_round_trips(accelerator: Accelerator, arguments: list[list[int]]) -> bytes:
    output = b""
    for number, args in enumerate(arguments):
        if number:
            accelerator.write_input(output)
        accelerator.start(number, args)
        accelerator.wait(TIMEOUT)
        output = accelerator.read_output()
    return output


def main(address: str, as_json: bool) -> int:
    data = records()
    with potash.sdk.open(address) as device:
        device.write(0, MODEL.ljust(RECORDS_PAGE * PAGE_SIZE, b"\0") + data)
        accelerator = device.accelerator()
        accelerator.require_idle()
        outputs, link = {}, {}
        for run in (as_chain, with_round_trips):
            prepare(accelerator, len(data))
            before = device.traffic()
            outputs[run.__name__] = run(accelerator, steps(device))
            link[run.__name__] = device.traffic(before).link
    output = outputs["as_chain"]
    equal = output == outputs["with_round_trips"]
    if as_json:
        report = {"equal": equal, "input": len(data), "output": output.hex(), "link_bytes": link}
        print(json.dumps(report))
    else:
        runs = [
            f"{length}x{digit}" for length, digit in zip(output[::2], output[1::2], strict=True)
        ]
        print(f"digits of camera {CHOSEN}, and for how many minutes:", *runs)
        print("bytes over the link, status polls included:")
        print(f"{link['as_chain']:8} as a chain")
        print(f"{link['with_round_trips']:8} with three round trips")
        print(f"{len(data):8} for a host that reads all records, and does the work")
        print("equal" if equal else "NOT equal")
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], "--json" in sys.argv[2:]))
