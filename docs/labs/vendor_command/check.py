"""The check of lab 1: a drive with the file as an extension, and what it answers."""

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
from potash.sdk import faults
from potash.vm.parent_death import dies_with_parent

TIMEOUT = 10
"""Seconds that a command may take."""
ENDING = 2
"""Seconds that the drive may take to end."""
DELAYS = ("250ms", "2s")
"""How long the media take to read; the second where the machine is busy."""


@contextlib.contextmanager
def drive_with(file: str) -> Iterator[potash.sdk.Device]:
    """A drive in a process of its own, with the extension `file`."""
    with tempfile.TemporaryDirectory(prefix="potash-") as folder:
        socket = str(Path(folder) / "drive")
        serve = ["serve", "--socket", socket, "--size", "16M", "--extend", file]
        options = ["--json", "--log-level", "warning", "--allow-faults"]
        module = [sys.executable, "-m", "potash.cli.main"]
        command = dies_with_parent([*module, *serve, *options])
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            try:
                assert process.stdout is not None
                if not process.stdout.readline():
                    raise SystemExit("the drive does not start with this file")
                with potash.sdk.open(
                    f"vfio-user:{socket}", timeout=TIMEOUT, queue_depth=2
                ) as device:
                    yield device
            finally:
                process.terminate()
                try:
                    process.wait(ENDING)
                except subprocess.TimeoutExpired:
                    process.kill()  # a handler that does not return keeps it from ending


def answer(pending: potash.sdk.PendingCommand) -> int | potash.sdk.CommandFailed:
    """The completion's dword 0, or the error with which it ended."""
    try:
        return pending.result().result
    except potash.sdk.CommandFailed as error:
        return error


def check(made: Mapping[str, Any]) -> list[str]:
    """What is missing, a sentence each."""
    try:
        return missing(made)
    except (potash.sdk.CommandTimeout, potash.sdk.DeviceGone) as error:
        return [f"the drive stops answering, as where a handler does not return: {error}"]


def missing(made: Mapping[str, Any]) -> list[str]:
    """The same, of a drive that answers. Raises CommandTimeout, DeviceGone."""
    opcode = made["OPCODE"]
    with drive_with(made["__file__"]) as device:
        size, last = device.block_size, device.capacity // device.block_size - 1
        device.write(8, bytes(size) + b"\1" + bytes(2 * size - 1) + bytes(3 * size))
        device.write(last, b"\1".ljust(size))
        device.io(IoOpcode.WRITE_UNCORRECTABLE, nsid=1, cdw10=100, cdw12=0)

        def count(first: int, blocks: int) -> potash.sdk.PendingCommand:
            return device.submit(opcode, nsid=1, cdw10=first, cdw12=blocks - 1)

        problems = [
            f"blocks {first} to {first + blocks - 1}: {found} instead of {expected}"
            for first, blocks, expected in ((8, 6, 5), (9, 1, 0), (last, 1, 0))
            if (found := answer(count(first, blocks))) != expected
        ]
        for first, status, what in (
            (last, Status.LBA_OUT_OF_RANGE, "a range beyond the end"),
            (99, Status.UNRECOVERED_READ_ERROR, "an uncorrectable block"),
        ):
            if getattr(answer(count(first, 2)), "status", None) != status:
                name = (
                    status.name.replace("_", " ").title().replace("Lba", "LBA").replace("Of", "of")
                )
                problems.append(f"{what} does not end with {name}")
        log = CommandEffectsLog(
            device.log_page(LogPage.COMMANDS_SUPPORTED_AND_EFFECTS, CommandEffectsLog.SIZE)
        )
        if not log.iocs[opcode] & CommandEffects.CSUPP:
            problems.append("the effects log does not have the command")
        faults.add(device, "media write lba=40..42 delay=500ms count=1")
        data = (b"\1".ljust(size)) * 3
        write = device.submit(IoOpcode.WRITE, nsid=1, cdw10=40, cdw12=2, data_out=data)
        if (found := answer(count(40, 3))) != 0:
            problems.append(f"beside a Write of blocks 40 to 42: {found} instead of 0")
        write.result()
        if not problems and not any(overtaken(device, count, delay) for delay in DELAYS):
            problems.append("while the media read for it, the drive serves no other command")
    return problems


def overtaken(device: potash.sdk.Device, count: Any, delay: str) -> bool:
    """Whether a Read ends before the command, for which the media take so long."""
    faults.add(device, f"media read lba=60..61 delay={delay} count=1")
    pending = count(60, 2)
    device.read(0, 1)
    first = not pending.done()
    pending.result()
    return first
