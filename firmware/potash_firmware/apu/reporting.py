"""How workers report: that they are ready, what their programs say, and why a job has failed."""

import resource
import socket
from collections.abc import Callable

from csd_spec.descriptors import LogEntryType
from csd_spec.program import Level
from potash_firmware import bpf
from potash_firmware.apu import channel
from potash_firmware.apu.blocks import MediaReadError
from potash_firmware.apu.channel import FromWorker, Line, Ready

FAULTS: dict[bpf.FaultKind, LogEntryType] = {
    bpf.FaultKind.OUT_OF_BOUNDS: LogEntryType.MEMORY_FAULT,
    bpf.FaultKind.READ_ONLY: LogEntryType.MEMORY_FAULT,
    bpf.FaultKind.UNALIGNED: LogEntryType.MEMORY_FAULT,
    bpf.FaultKind.INSTRUCTION_LIMIT: LogEntryType.LIMIT_EXCEEDED,
    bpf.FaultKind.CALL_DEPTH: LogEntryType.LIMIT_EXCEEDED,
}
"""How the log calls a fault; ACCELERATOR_ERROR what is not here."""

LEVELS = {
    Level.INFO: LogEntryType.PROGRAM_OUTPUT,
    Level.ERROR: LogEntryType.ACCELERATOR_ERROR,
}
"""How the log calls what a program says."""


class Reporter:
    """A worker's end of its channel."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end

    def serve(
        self, perform: Callable[[bytes, list[int]], None], largest: int, descriptors: int
    ) -> None:
        """`perform` one order after the other, until nobody is at the other side.

        It gets the order, of at most `largest` bytes, and the descriptors that came with it.
        """
        try:
            self.send(Ready())
            while True:
                data, fds, _, _ = socket.recv_fds(self._end, largest, descriptors)
                if not data:
                    return
                perform(data, fds)
        except (BrokenPipeError, ConnectionResetError):
            pass  # the service is gone, or wants nothing more from this worker

    def send(self, message: FromWorker) -> None:
        self._end.send(channel.encode(message), socket.MSG_NOSIGNAL)

    def log(self, level: Level, text: str) -> None:
        self.send(Line(LEVELS[level], text[: channel.TEXT_LIMIT]))

    def print(self, text: str) -> None:
        self.log(Level.INFO, text)

    def failure(self, error: Exception) -> None:
        kind, text = LogEntryType.ACCELERATOR_ERROR, str(error)
        if isinstance(error, MemoryError) or isinstance(error.__cause__, MemoryError):
            memory, _ = resource.getrlimit(resource.RLIMIT_DATA)
            kind = LogEntryType.LIMIT_EXCEEDED
            text = f"the job takes more memory than the {memory >> 20} MiB that it may have"
        elif isinstance(error, bpf.Fault):
            kind = FAULTS.get(error.kind, kind)
        elif isinstance(error, MediaReadError):
            kind = LogEntryType.INVALID_INPUT_BUFFER
        self.send(Line(kind, text[: channel.TEXT_LIMIT]))
