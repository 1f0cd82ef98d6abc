"""An accelerator as a user holds it: its firmware, its buffers, its jobs.

Alkali CSD platform documentation, section 4.3; section 4.4 gives the order of the commands.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar

from csd_spec import fields
from csd_spec.descriptors import Accelerator as Description
from csd_spec.descriptors import (
    AcceleratorStatus,
    CapabilityId,
    DescriptorError,
    LogPage,
    dwords,
    encode_arguments,
    leading_length,
    pad_to_dword,
)
from csd_spec.opcodes import (
    DWORD_SIZE,
    KEEP_ACTIVE_FIRMWARE,
    LOG_PAGE,
    AdminOpcode,
    GlobalOperation,
    IoOpcode,
    Operation,
)
from csd_spec.status import StatusId
from potash.sdk.errors import CommandFailed, DeviceMisbehaved, InvalidRequest, JobFailed, JobTimeout
from potash.sdk.transport import NO_CDWS, Buffer, Cdws, Completion, Layout, encoded

MAX_LOG_SIZE = 1 << 24
"""Bytes of a log that are believed."""
MAX_FAILED_POLLS = 100
"""Polls in a row that may fail before `wait` gives up: ten seconds of the longest pause."""
SNAPSHOT_TRIES = 3
"""Another host may take the snapshot between its length and its content; then ask again."""

T = TypeVar("T")
MakeLayout = Callable[[int, int], Layout]


class Commands(Protocol):
    """What an accelerator needs of its device; `potash.sdk.Device` says what each does."""

    @property
    def max_transfer(self) -> int: ...

    def admin(
        self, opcode: int, *, cdws: Cdws = NO_CDWS, data_in_length: int = 0
    ) -> Completion: ...

    def io(
        self,
        opcode: int,
        *,
        nsid: int | None = None,
        cdws: Cdws = NO_CDWS,
        data_out: Buffer | None = None,
        data_in_length: int = 0,
    ) -> Completion: ...

    def log_page(self, lid: int, length: int, *, lsi: int = 0, rae: bool = False) -> bytes: ...


class Accelerator:
    """One accelerator of a device. Its commands raise what `Device`'s do."""

    def __init__(
        self,
        device: Commands,
        description: Description,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.device = device
        self.description = description
        self._clock = clock
        self._sleep = sleep

    @property
    def id(self) -> int:
        return self.description.id

    @property
    def input_size(self) -> int:
        """Bytes of the input buffer; 0 when there is none."""
        return self.description.size_of(CapabilityId.INPUT_BUFFER) or 0

    @property
    def output_size(self) -> int:
        """Bytes of the output buffer; 0 when there is none."""
        return self.description.size_of(CapabilityId.OUTPUT_BUFFER) or 0

    @property
    def takes_firmware(self) -> bool:
        return self.description.size_of(CapabilityId.FIRMWARE) is not None

    def enable(self) -> None:
        """Enable the accelerator subsystem: all accelerators of the device."""
        self._global_control(GlobalOperation.ENABLE)

    def disable(self) -> None:
        """Disable the accelerator subsystem: all accelerators of the device."""
        self._global_control(GlobalOperation.DISABLE)

    def write_input(self, data: Buffer, *, offset: int = 0) -> None:
        """Fill the input buffer from byte `offset`, a multiple of 4.

        The device moves dwords, so zeroes follow data of another length. InvalidRequest when it is
        larger than the buffer.
        """
        if offset + len(data) > self.input_size:
            raise InvalidRequest(
                f"{offset + len(data)} bytes do not fit in the input buffer of {self.input_size}"
            )
        self._send(
            IoOpcode.SEND_DATA,
            data,
            offset,
            lambda count, at: fields.DataTransfer(count, self.id, at),
        )

    def read_output(self, length: int | None = None, *, offset: int = 0) -> bytes:
        """`length` bytes of the output buffer from byte `offset`, a multiple of 4.

        Without a length: as many as the last job made.
        """
        if length is None:
            length = max(0, self.status().produced - offset)
        if offset + length > self.output_size:
            raise InvalidRequest(f"the output buffer has only {self.output_size} bytes")
        return self._receive(
            IoOpcode.READ_DATA,
            length,
            offset,
            lambda count, at: fields.DataTransfer(count, self.id, at),
        )

    def send_firmware(self, program: Buffer, firmware_id: int = 0) -> None:
        """Store a program (an ELF file) as firmware `firmware_id`."""
        self._send(
            IoOpcode.SEND_FIRMWARE,
            program,
            0,
            lambda count, at: fields.FirmwareTransfer(count, self.id, firmware_id, at),
        )

    def read_firmware(self, length: int, firmware_id: int = 0) -> bytes:
        """`length` bytes of a firmware, zeroes behind its end."""
        return self._receive(
            IoOpcode.READ_FIRMWARE,
            length,
            0,
            lambda count, at: fields.FirmwareTransfer(count, self.id, firmware_id, at),
        )

    def use_local_input(self, page: int, pages: int, nsid: int | None = None) -> None:
        """Let the next job read `pages` pages of 4096 bytes of a namespace, from `page`.

        The namespace is the device's, unless another one is named.
        """
        self._local_storage(IoOpcode.LOCAL_INPUT, page, pages, nsid)

    def use_local_output(self, page: int, pages: int, nsid: int | None = None) -> None:
        """Let the next job write `pages` pages of 4096 bytes of a namespace, from `page`.

        The namespace is the device's, unless another one is named.
        """
        self._local_storage(IoOpcode.LOCAL_OUTPUT, page, pages, nsid)

    def select(self, firmware_id: int) -> None:
        """Make a firmware the active one."""
        self._control(Operation.SELECT_FIRMWARE, firmware_id)

    def start(
        self, firmware_id: int = KEEP_ACTIVE_FIRMWARE, arguments: Iterable[Buffer] = ()
    ) -> None:
        """Start a job, with the active firmware or with another, which becomes the active one."""
        self._control(Operation.START, firmware_id, encode_arguments(arguments))

    def stop(self) -> None:
        """Stop the job; the configuration stays."""
        self._control(Operation.STOP)

    def reset(self) -> None:
        """Bring the accelerator back to its blank, stopped state."""
        self._control(Operation.RESET)

    def status(self) -> AcceleratorStatus:
        """What the accelerator does, or did last."""

        def read(size: int, retain: bool) -> bytes:
            count = dwords(size)
            completion = self.device.admin(
                AdminOpcode.GET_STATUS,
                cdws=encoded(fields.GetStatus(count, self.id, retain)),
                data_in_length=count * DWORD_SIZE,
            )
            return completion.data

        return self._snapshot("status", self.device.max_transfer, read, AcceleratorStatus.decode)

    def log(self) -> LogPage:
        """The accelerator's log, the oldest entry first."""

        def read(size: int, retain: bool) -> bytes:
            return self.device.log_page(LOG_PAGE, size, lsi=self.id, rae=retain)

        return self._snapshot("log", MAX_LOG_SIZE, read, LogPage.decode)

    def wait(
        self, timeout: float | None = None, *, poll: tuple[float, float] = (0.002, 0.1)
    ) -> AcceleratorStatus:
        """Wait until the job is done, at most `timeout` seconds; gives its status.

        The pause between two polls doubles from the first of `poll` to the second, in seconds.
        Raises JobFailed, with what the log says, when the job failed or was stopped or when there
        is none, and JobTimeout when it still runs. A poll that the device fails without Do Not
        Retry, as it does while its application processor starts again, is repeated.
        """
        deadline = None if timeout is None else self._clock() + timeout
        pause, longest = poll
        failures = 0
        while True:
            try:
                status = self.status()
                if status.status == StatusId.DONE:
                    return status
                if status.status != StatusId.RUNNING:
                    raise self._job_failed(status)
                failures = 0
            except CommandFailed as error:
                failures += 1
                if error.dnr or failures > MAX_FAILED_POLLS:
                    raise
            if deadline is not None and self._clock() >= deadline:
                raise JobTimeout(f"accelerator {self.id} still runs after {timeout:g} s; stop it")
            self._sleep(pause)
            pause = min(2 * pause, longest)

    def _job_failed(self, status: AcceleratorStatus) -> JobFailed:
        """What to raise for a job that is neither running nor done."""
        log = self.log()
        if status.status == StatusId.IDLE:
            reason = f"accelerator {self.id} has no job; start one"
        elif status.status == StatusId.STOPPED:
            reason = f"the job on accelerator {self.id} was stopped"
        else:
            texts = [entry.text.strip() for entry in log.entries if entry.text]
            because = f": {texts[-1]}" if texts else ""
            reason = f"the job on accelerator {self.id} failed{because}"
        return JobFailed(reason, status, log)

    def _global_control(self, operation: GlobalOperation) -> None:
        cdws = encoded(fields.GlobalControl(operation))
        self.device.admin(AdminOpcode.GLOBAL_CONTROL, cdws=cdws)

    def _control(self, operation: Operation, firmware: int = 0, arguments: bytes = b"") -> None:
        command = fields.Control(operation, self.id, firmware, dwords(len(arguments)))
        self.device.io(IoOpcode.CONTROL, cdws=encoded(command), data_out=arguments or None)

    def _local_storage(self, opcode: IoOpcode, page: int, pages: int, nsid: int | None) -> None:
        cdws = encoded(fields.LocalStorage(page, pages, self.id))
        self.device.io(opcode, nsid=nsid, cdws=cdws)

    def _send(self, opcode: IoOpcode, data: Buffer, offset: int, layout: MakeLayout) -> None:
        """Send `data` in pieces; `layout` takes a piece's size and offset in dwords."""
        at = _dword_offset(offset)
        view, limit = memoryview(data).cast("B"), self.device.max_transfer
        if not view:
            raise InvalidRequest("there is no data to send")
        for start in range(0, len(view), limit):
            piece: Buffer = view[start : start + limit]
            if len(piece) % DWORD_SIZE:
                piece = pad_to_dword(piece)
            here = at + start // DWORD_SIZE
            self.device.io(opcode, cdws=encoded(layout(dwords(len(piece)), here)), data_out=piece)

    def _receive(self, opcode: IoOpcode, length: int, offset: int, layout: MakeLayout) -> bytes:
        at = _dword_offset(offset)
        limit = self.device.max_transfer
        pieces: list[bytes] = []
        for start in range(0, length, limit):
            count = dwords(min(limit, length - start))
            here = at + start // DWORD_SIZE
            completion = self.device.io(
                opcode, cdws=encoded(layout(count, here)), data_in_length=count * DWORD_SIZE
            )
            pieces.append(completion.data)
        return b"".join(pieces)[:length]

    def _snapshot(
        self,
        what: str,
        limit: int,
        read: Callable[[int, bool], bytes],
        decode: Callable[[bytes], T],
    ) -> T:
        """Read a structure that first tells its length: retain it, measure it, take it."""
        mistake: DescriptorError
        for _ in range(SNAPSHOT_TRIES):
            try:
                length = leading_length(read(DWORD_SIZE, True))
                if not DWORD_SIZE <= length <= limit:
                    raise DescriptorError(f"it states a length of {length} bytes")
                return decode(read(length, False))
            except DescriptorError as error:
                mistake = error
        raise DeviceMisbehaved(f"the {what} of accelerator {self.id} is unreadable: {mistake}")


def _dword_offset(offset: int) -> int:
    if offset % DWORD_SIZE:
        raise InvalidRequest(f"the offset {offset} is not a multiple of {DWORD_SIZE} bytes")
    return offset // DWORD_SIZE
