"""An accelerator as a user holds it: its firmware, its buffers, its jobs.

Alkali CSD platform documentation, section 4.3; section 4.4 gives the order of the commands.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Iterable
from contextlib import suppress
from typing import Protocol, TypeVar

from csd_spec import fields
from csd_spec.descriptors import Accelerator as Description
from csd_spec.descriptors import (
    AcceleratorStatus,
    CapabilityId,
    DescriptorError,
    LogEntryType,
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
from csd_spec.status import StatusId, VendorStatus
from nvme_spec.logs import AsyncEvent
from potash.sdk import job
from potash.sdk.errors import (
    CommandFailed,
    DeviceMisbehaved,
    InvalidRequest,
    JobFailed,
    JobTimeout,
    PotashError,
)
from potash.sdk.job import Argument, JobResult
from potash.sdk.places import BufferSink, BufferSource, Content, Sink, Source, Told
from potash.sdk.progress import Progress, silent
from potash.sdk.transport import NO_CDWS, Buffer, Cdws, Completion, Layout, encoded

MAX_LOG_SIZE = 1 << 24
"""Bytes of a log that are believed."""
MAX_FAILED_POLLS = 100
"""Polls in a row that may fail before `wait` gives up: ten seconds of the longest pause."""
SNAPSHOT_TRIES = 3
"""Another host may take the snapshot between its length and its content; then ask again."""

EVENT_PAUSE = 1.0
"""Seconds between two polls, at most, where an event tells of the job's end."""
_REASONS: dict[int, tuple[LogEntryType, ...]] = {
    VendorStatus.INVALID_FIRMWARE: (LogEntryType.INVALID_FIRMWARE,),
    VendorStatus.INVALID_BUFFERS: (
        LogEntryType.INVALID_INPUT_BUFFER,
        LogEntryType.INVALID_OUTPUT_BUFFER,
    ),
    VendorStatus.FIRMWARE_REFUSED: (LogEntryType.ACCELERATOR_ERROR,),
}
"""Statuses whose reason the accelerator's log tells, and the types of the entry that does."""

T = TypeVar("T")
MakeLayout = Callable[[int, int], Layout]
Done = Callable[[float], None]


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

    @property
    def nsid(self) -> int: ...

    @property
    def block_device(self) -> int | None: ...

    @property
    def tells_events(self) -> bool: ...

    def await_event(self, timeout: float) -> AsyncEvent | None: ...


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

    def run(
        self,
        program: Content,
        input: Content | Source,
        *,
        output: Sink | None = None,
        args: Iterable[Argument] = (),
        timeout: float | None = None,
        firmware_id: int = 0,
        progress: Progress = silent,
        report: Callable[[str], None] | None = None,
    ) -> JobResult:
        """Run a program on an input: everything from enabling the subsystem to its output.

        Program and input are bytes or the paths of files, the input may also be a `FileSource`;
        the output comes with the result, unless `output` is a `FileSink` or another place for it.
        `progress` is called again and again meanwhile, `report` with a line for each step. The
        accelerator is reset first. Raises what `potash.sdk.job.run` does, and OSError for files.
        """
        return job.run(
            self,
            program,
            input if isinstance(input, Source) else BufferSource(input),
            BufferSink() if output is None else output,
            arguments=args,
            firmware_id=firmware_id,
            timeout=timeout,
            told=Told(report or (lambda step: None), progress),
        )

    def enable(self) -> None:
        """Enable the accelerator subsystem: all accelerators of the device."""
        self._global_control(GlobalOperation.ENABLE)

    def disable(self) -> None:
        """Disable the accelerator subsystem: all accelerators of the device."""
        self._global_control(GlobalOperation.DISABLE)

    def write_input(self, data: Buffer, *, offset: int = 0, progress: Progress = silent) -> None:
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
            lambda fraction: progress("sending the input", fraction),
        )

    def read_output(
        self, length: int | None = None, *, offset: int = 0, progress: Progress = silent
    ) -> bytes:
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
            lambda fraction: progress("reading the output", fraction),
        )

    def send_firmware(
        self, program: Buffer, firmware_id: int = 0, *, progress: Progress = silent
    ) -> None:
        """Store a program (an ELF file) as firmware `firmware_id`."""
        self._send(
            IoOpcode.SEND_FIRMWARE,
            program,
            0,
            lambda count, at: fields.FirmwareTransfer(count, self.id, firmware_id, at),
            lambda fraction: progress("sending the program", fraction),
        )

    def read_firmware(
        self, length: int | None = None, firmware_id: int = 0, *, progress: Progress = silent
    ) -> bytes:
        """`length` bytes of a firmware, zeroes behind its end; without a length, all of it."""
        if length is None:
            length = self.firmware_length(firmware_id)
        return self._receive(
            IoOpcode.READ_FIRMWARE,
            length,
            0,
            lambda count, at: fields.FirmwareTransfer(count, self.id, firmware_id, at),
            lambda fraction: progress("reading the program", fraction),
        )

    def firmware_length(self, firmware_id: int = 0) -> int:
        """Bytes of a firmware, its padding to a dword included: what Read Firmware says of it."""
        cdws = encoded(fields.FirmwareTransfer(1, self.id, firmware_id))
        completion = self._io(IoOpcode.READ_FIRMWARE, cdws=cdws, data_in_length=DWORD_SIZE)
        return completion.result

    def use_local_input(self, page: int, pages: int, nsid: int | None = None) -> None:
        """Let the next job read `pages` pages of 4096 bytes of a namespace, from `page`.

        The namespace is the device's, unless another one is named.
        """
        self._local_storage(IoOpcode.LOCAL_INPUT, page, pages, nsid)

    def append_local_input(self, page: int, pages: int, nsid: int | None = None) -> None:
        """Let the next job read these pages behind those that were named before."""
        self._local_storage(IoOpcode.APPEND_LOCAL_INPUT, page, pages, nsid)

    def use_local_output(self, page: int, pages: int, nsid: int | None = None) -> None:
        """Let the next job write `pages` pages of 4096 bytes of a namespace, from `page`.

        The namespace is the device's, unless another one is named.
        """
        self._local_storage(IoOpcode.LOCAL_OUTPUT, page, pages, nsid)

    def append_local_output(self, page: int, pages: int, nsid: int | None = None) -> None:
        """Let the next job write these pages behind those that were named before."""
        self._local_storage(IoOpcode.APPEND_LOCAL_OUTPUT, page, pages, nsid)

    def grant(
        self,
        page: int,
        pages: int,
        nsid: int | None = None,
        *,
        writable: bool = False,
        replace: bool = False,
    ) -> None:
        """Let programs read pages of a namespace by themselves, and write them if `writable`.

        The range is a further one, unless it is to `replace` all that were granted before.
        """
        layout = fields.LocalStorage(page, pages, self.id, writable, replace)
        self._io(IoOpcode.GRANT_LOCAL_STORAGE, nsid=nsid, cdws=encoded(layout))

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

    def status(self, *, retain: bool = False) -> AcceleratorStatus:
        """What the accelerator does, or did last; to `retain` it gives the next reader the same."""

        def read(size: int, retain: bool) -> bytes:
            count = dwords(size)
            completion = self.device.admin(
                AdminOpcode.GET_STATUS,
                cdws=encoded(fields.GetStatus(count, self.id, retain)),
                data_in_length=count * DWORD_SIZE,
            )
            return completion.data

        limit = self.device.max_transfer
        return self._snapshot("status", limit, read, AcceleratorStatus.decode, retain)

    def log(self, *, retain: bool = False) -> LogPage:
        """The accelerator's log, the oldest entry first; `retain` is as with `status`."""

        def read(size: int, retain: bool) -> bytes:
            return self.device.log_page(LOG_PAGE, size, lsi=self.id, rae=retain)

        return self._snapshot("log", MAX_LOG_SIZE, read, LogPage.decode, retain)

    def wait(
        self,
        timeout: float | None = None,
        *,
        poll: tuple[float, float] = (0.002, 0.1),
        progress: Progress = silent,
    ) -> AcceleratorStatus:
        """Wait until the job is done, at most `timeout` seconds; gives its status.

        Over vfio-user the device tells of the job's end. Everywhere it is polled too: the pause
        between two polls doubles from the first of `poll` to the second, in seconds, and where the
        device tells of the end up to one second; `progress` is called before each. Raises
        JobFailed, with what the log says, when the job failed or was stopped or when there is none,
        and JobTimeout when it still runs. A device with the profile `alkali` calls a failed job done;
        only its log says more, which `run` reads. A poll that the device fails without Do Not Retry, as it
        does while its application processor starts again, is repeated.
        """
        deadline = None if timeout is None else self._clock() + timeout
        pause, longest = poll
        if self.device.tells_events:
            self._acknowledge()
            self.device.await_event(0)
            longest = max(longest, EVENT_PAUSE)
        failures = 0
        while True:
            try:
                status = self.status()
                if status.status == StatusId.DONE:
                    return status
                if status.status != StatusId.RUNNING:
                    raise self.failure(status, self.log())
                failures = 0
            except CommandFailed as error:
                failures += 1
                if error.dnr or failures > MAX_FAILED_POLLS:
                    raise
            left = pause if deadline is None else deadline - self._clock()
            if left <= 0:
                raise JobTimeout(f"accelerator {self.id} still runs after {timeout:g} s; stop it")
            progress("running", None)
            self._pause(min(pause, left))
            pause = min(2 * pause, longest)

    def _pause(self, seconds: float) -> None:
        """Let time pass, or less of it when the device tells of something."""
        if not self.device.tells_events:
            self._sleep(seconds)
        elif self.device.await_event(seconds):
            self._acknowledge()

    def _acknowledge(self) -> None:
        """Be told of the next job's end: its log page is read without retaining the event.

        NVM Express Base Specification 2.0, section 5.2 (Asynchronous Event Request command).
        """
        with suppress(CommandFailed):
            self.device.log_page(LOG_PAGE, DWORD_SIZE, lsi=self.id)

    def failure(self, status: AcceleratorStatus, log: LogPage) -> JobFailed:
        """What to raise for a job without a result."""
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
        self._io(IoOpcode.CONTROL, cdws=encoded(command), data_out=arguments or None)

    def _local_storage(self, opcode: IoOpcode, page: int, pages: int, nsid: int | None) -> None:
        self._io(opcode, nsid=nsid, cdws=encoded(fields.LocalStorage(page, pages, self.id)))

    def _io(
        self,
        opcode: IoOpcode,
        *,
        nsid: int | None = None,
        cdws: Cdws,
        data_out: Buffer | None = None,
        data_in_length: int = 0,
    ) -> Completion:
        """Send an I/O command; where it is refused, the error has what the log says of that."""
        try:
            return self.device.io(
                opcode, nsid=nsid, cdws=cdws, data_out=data_out, data_in_length=data_in_length
            )
        except CommandFailed as error:
            if error.status in _REASONS:
                error.log = self._last_reason(_REASONS[error.status])
            raise

    def _last_reason(self, types: Container[int]) -> str:
        """The log's last text, if it is of one of these types."""
        try:
            entries = self.log().entries
        except PotashError:
            return ""
        return entries[-1].text if entries and entries[-1].type in types else ""

    def _send(
        self, opcode: IoOpcode, data: Buffer, offset: int, layout: MakeLayout, done: Done
    ) -> None:
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
            self._io(opcode, cdws=encoded(layout(dwords(len(piece)), here)), data_out=piece)
            done(min(1.0, (start + limit) / len(view)))

    def _receive(
        self, opcode: IoOpcode, length: int, offset: int, layout: MakeLayout, done: Done
    ) -> bytes:
        at = _dword_offset(offset)
        limit = self.device.max_transfer
        pieces: list[bytes] = []
        for start in range(0, length, limit):
            count = dwords(min(limit, length - start))
            here = at + start // DWORD_SIZE
            completion = self._io(
                opcode, cdws=encoded(layout(count, here)), data_in_length=count * DWORD_SIZE
            )
            pieces.append(completion.data)
            done(min(1.0, (start + limit) / length))
        return b"".join(pieces)[:length]

    def _snapshot(
        self,
        what: str,
        limit: int,
        read: Callable[[int, bool], bytes],
        decode: Callable[[bytes], T],
        retain: bool,
    ) -> T:
        """Read a structure that first tells its length: retain it, measure it, take it."""
        mistake: DescriptorError
        for _ in range(SNAPSHOT_TRIES):
            try:
                length = leading_length(read(DWORD_SIZE, True))
                if not DWORD_SIZE <= length <= limit:
                    raise DescriptorError(f"it states a length of {length} bytes")
                return decode(read(length, retain))
            except DescriptorError as error:
                mistake = error
        raise DeviceMisbehaved(f"the {what} of accelerator {self.id} is unreadable: {mistake}")


def _dword_offset(offset: int) -> int:
    if offset % DWORD_SIZE:
        raise InvalidRequest(f"the offset {offset} is not a multiple of {DWORD_SIZE} bytes")
    return offset // DWORD_SIZE
