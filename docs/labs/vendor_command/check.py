"""The check of lab 1: a drive that has the command too, and what it answers."""

import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import potash.sdk
from nvme_spec.logs import CommandEffects, CommandEffectsLog, LogPage
from nvme_spec.opcodes import IoOpcode
from nvme_spec.status import Status

BOOT = """
import runpy, sys
from potash.cli.app import run_app
from potash_firmware.rpu.command_sets import IO_COMMANDS
file, socket = sys.argv[1:]
row = runpy.run_path(file)["ROW"]
assert row.opcode not in IO_COMMANDS, f"{row.opcode:02X}h is another command's opcode"
IO_COMMANDS[row.opcode] = row
sys.exit(run_app(["serve", "--socket", socket, "--size", "16M", "--json",
                  "--log-level", "warning"]))
"""


@contextlib.contextmanager
def drive_with(file: str) -> Iterator[potash.sdk.Device]:
    """A drive in a process of its own whose table has the row of `file`."""
    with tempfile.TemporaryDirectory(prefix="potash-") as folder:
        socket = str(Path(folder) / "drive")
        command = [sys.executable, "-c", BOOT, file, socket]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            try:
                assert process.stdout is not None
                if not process.stdout.readline():
                    raise SystemExit("the drive does not start with this row")
                with potash.sdk.open(f"vfio-user:{socket}", timeout=10) as device:
                    yield device
            finally:
                process.terminate()


def check(made: Mapping[str, Any]) -> list[str]:
    """What is missing, a sentence each."""
    opcode = made["ROW"].opcode
    with drive_with(made["__file__"]) as device:
        size, last = device.block_size, device.capacity // device.block_size - 1
        device.write(8, bytes(size) + b"\1" + bytes(2 * size - 1) + bytes(3 * size))
        device.write(last, b"\1".ljust(size))
        device.io(IoOpcode.WRITE_UNCORRECTABLE, nsid=1, cdw10=100, cdw12=0)

        def answer(first: int, blocks: int) -> int | None:
            """The completion's dword 0, or less than 0 for a status."""
            try:
                return device.io(opcode, nsid=1, cdw10=first, cdw12=blocks - 1).result
            except potash.sdk.CommandFailed as error:
                return -error.status

        problems = [
            f"blocks {first} to {first + blocks - 1}: {found} instead of {expected}"
            for first, blocks, expected in ((8, 6, 5), (9, 1, 0), (last, 1, 0))
            if (found := answer(first, blocks)) != expected
        ]
        if answer(last, 2) != -Status.LBA_OUT_OF_RANGE:
            problems.append("a range beyond the end does not end with LBA Out of Range")
        if answer(99, 2) != -Status.UNRECOVERED_READ_ERROR:
            problems.append("an uncorrectable block does not end with Unrecovered Read Error")
        log = CommandEffectsLog(
            device.log_page(LogPage.COMMANDS_SUPPORTED_AND_EFFECTS, CommandEffectsLog.SIZE)
        )
        if not log.iocs[opcode] & CommandEffects.CSUPP:
            problems.append("the effects log does not have the command")
    return problems
