"""The commands of an accelerator, one method each.

Alkali CSD platform documentation, section 4.3.
"""

from collections.abc import Callable, Container, Iterable
from contextlib import suppress
from functools import partial
from typing import Annotated, TypeVar, Unpack

from csd_spec import chains, descriptors, fields
from csd_spec.descriptors import Accelerator as Description
from csd_spec.opcodes import (
    DWORD_SIZE,
    KEEP_ACTIVE_FIRMWARE,
    LOG_PAGE,
    AdminOpcode,
    GlobalOperation,
    IoOpcode,
    Operation,
)
from csd_spec.reporting import Count, Key
from csd_spec.status import VendorStatus
from potash.sdk.commands import Commands, Fields, Layout, encoded, pieces_of
from potash.sdk.errors import CommandFailed, DeviceMisbehaved, InvalidRequest, PotashError, restated
from potash.sdk.progress import Progress, silent
from potash.sdk.transport import Buffer, Completion

MAX_LOG_SIZE = 1 << 24
"""Maximum bytes of a log that is plausible."""
SNAPSHOT_TRIES = 3
"""Another host may take the snapshot between its length and its content; then read it again."""
ARGUMENT_SIZE = 4
"""Bytes of a number among a program's arguments."""

_REASONS: dict[int, tuple[descriptors.LogEntryType, ...]] = {
    VendorStatus.INVALID_FIRMWARE: (descriptors.LogEntryType.INVALID_FIRMWARE,),
    VendorStatus.INVALID_BUFFERS: (
        descriptors.LogEntryType.INVALID_INPUT_BUFFER,
        descriptors.LogEntryType.INVALID_OUTPUT_BUFFER,
    ),
    VendorStatus.FIRMWARE_REFUSED: (descriptors.LogEntryType.ACCELERATOR_ERROR,),
}
"""Statuses whose reason is in the accelerator's log, and the types of its entry."""

T = TypeVar("T")
MakeLayout = Callable[[int, int], Layout]
Done = Callable[[float], None]


class AcceleratorCommands:
    """One accelerator of a device. Its commands raise what `Device`'s do."""

    def __init__(self, device: Commands, description: Description) -> None:
        self.device = device
        self.description = description

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} of {self.device!r}>"

    @property
    def id(self) -> Annotated[Count, Key()]:
        """The accelerator's ID."""
        return self.description.id

    @property
    def takes_firmware(self) -> Annotated[bool, Key("firmware")]:
        """True if the accelerator can be sent programs."""
        return self.description.size_of(descriptors.CapabilityId.FIRMWARE) is not None

    @property
    def input_size(self) -> Annotated[Count, Key()]:
        """Size of the accelerator's input buffer in bytes.

        It is 0 where there is none, as `output_size` is.
        """
        return self.description.size_of(descriptors.CapabilityId.INPUT_BUFFER) or 0

    @property
    def output_size(self) -> Annotated[Count, Key()]:
        """Size of the accelerator's output buffer in bytes."""
        return self.description.size_of(descriptors.CapabilityId.OUTPUT_BUFFER) or 0

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
        done = partial(progress, "sending the input")
        self._send(IoOpcode.SEND_DATA, data, offset, self._data, done)

    def copy_input(self, address: int, length: int, *, offset: int = 0) -> None:
        """Fill the input buffer from byte `offset` with memory that another drive shares: both are
        drives of one `potash guest`, with `--memory-peers`. Length and offset are multiples of 4.

        The data pass neither through the host nor through its memory.
        """
        if length % DWORD_SIZE or offset % DWORD_SIZE:
            raise InvalidRequest(f"the input buffer is filled in pieces of {DWORD_SIZE} bytes")
        for at in range(0, length, self.device.max_transfer):
            dwords = min(length - at, self.device.max_transfer) // DWORD_SIZE
            at_dword = (offset + at) // DWORD_SIZE
            layout = fields.PeerTransfer(dwords, self.id, address + at, at_dword)
            self._io(IoOpcode.SEND_PEER_DATA, **encoded(layout))

    def read_output(
        self, length: int | None = None, *, offset: int = 0, progress: Progress = silent
    ) -> bytes:
        """`length` bytes of the output buffer from byte `offset`, a multiple of 4.

        The default length is that of the last job's output.
        """
        if length is None:
            length = max(0, self.status().produced - offset)
        if offset + length > self.output_size:
            raise InvalidRequest(f"the output buffer has only {self.output_size} bytes")
        done = partial(progress, "reading the output")
        return self._receive(IoOpcode.READ_DATA, length, offset, self._data, done)

    def send_firmware(
        self, program: Buffer, firmware_id: int = 0, *, progress: Progress = silent
    ) -> None:
        """Store a program (an ELF file) as firmware `firmware_id`."""
        done = partial(progress, "sending the program")
        self._send(IoOpcode.SEND_FIRMWARE, program, 0, self._firmware(firmware_id), done)

    def read_firmware(
        self, length: int | None = None, firmware_id: int = 0, *, progress: Progress = silent
    ) -> bytes:
        """`length` bytes of a firmware, zeroes behind its end; without a length, all of it."""
        if length is None:
            length = self.firmware_length(firmware_id)
        done = partial(progress, "reading the program")
        layout = self._firmware(firmware_id)
        return self._receive(IoOpcode.READ_FIRMWARE, length, 0, layout, done)

    def firmware_length(self, firmware_id: int = 0) -> int:
        """Bytes of a firmware as reported by Read Firmware, including its padding to a dword."""
        layout = encoded(fields.FirmwareTransfer(1, self.id, firmware_id))
        return self._io(IoOpcode.READ_FIRMWARE, data_in_length=DWORD_SIZE, **layout).result

    def use_local_input(
        self, page: int, pages: int, nsid: int | None = None, *, append: bool = False
    ) -> None:
        """Use `pages` pages of 4096 bytes of a namespace, from `page` on, as the next job's input.

        The default namespace is the device's. With `append` they are added after the pages that
        were selected before.
        """
        opcode = IoOpcode.APPEND_LOCAL_INPUT if append else IoOpcode.LOCAL_INPUT
        self._io(opcode, nsid=nsid, **encoded(fields.LocalStorage(page, pages, self.id)))

    def use_local_output(
        self, page: int, pages: int, nsid: int | None = None, *, append: bool = False
    ) -> None:
        """Use pages as the next job's output; the arguments are those of `use_local_input`."""
        opcode = IoOpcode.APPEND_LOCAL_OUTPUT if append else IoOpcode.LOCAL_OUTPUT
        self._io(opcode, nsid=nsid, **encoded(fields.LocalStorage(page, pages, self.id)))

    def grant(
        self,
        page: int,
        pages: int,
        nsid: int | None = None,
        *,
        writable: bool = False,
        replace: bool = False,
    ) -> None:
        """Grant programs the right to read pages of a namespace, and to write them if `writable`.

        The range is added to the earlier grants, or replaces them with `replace`.
        """
        layout = fields.LocalStorage(page, pages, self.id, writable, replace)
        self._io(IoOpcode.GRANT_LOCAL_STORAGE, nsid=nsid, **encoded(layout))

    def select(self, firmware_id: int) -> None:
        """Make a firmware the active one."""
        self._control(Operation.SELECT_FIRMWARE, firmware_id)

    def start(
        self, firmware_id: int = KEEP_ACTIVE_FIRMWARE, args: Iterable[Buffer | int] = ()
    ) -> None:
        """Start a job, with the active firmware or with another, which becomes the active one.

        Each of the program's arguments is its bytes or a number of 32 bits.
        """
        self._control(
            Operation.START, firmware_id, descriptors.encode_arguments(map(argument_bytes, args))
        )

    def start_chain(self, steps: Iterable[tuple[int, Iterable[Buffer | int]]]) -> None:
        """Start a chain, a job of several steps: firmware IDs and arguments as in `start`.

        The output of each step is the input of the next, without a transfer to the host. Raises
        InvalidRequest for steps that cannot be. Only drives of Potash have this operation.
        """
        encoded_steps = (
            chains.JobStep(firmware_id, descriptors.encode_arguments(map(argument_bytes, args)))
            for firmware_id, args in steps
        )
        with restated(chains.ChainError, to=InvalidRequest):
            sent = chains.encode(encoded_steps)
        self._control(Operation.START_CHAIN, arguments=sent)

    def stop(self) -> None:
        """Stop the job; the configuration is kept."""
        self._control(Operation.STOP)

    def reset(self) -> None:
        """Reset the accelerator: end its job, discard firmware and buffers."""
        self._control(Operation.RESET)

    def status(self, *, retain: bool = False) -> descriptors.AcceleratorStatus:
        """The status of the accelerator; `retain` keeps the snapshot for the next reader (RAE)."""

        def read(size: int, retain: bool) -> bytes:
            count = descriptors.dwords(size)
            layout = encoded(fields.GetStatus(count, self.id, retain))
            length = count * DWORD_SIZE
            return self.device.admin(AdminOpcode.GET_STATUS, data_in_length=length, **layout).data

        limit = self.device.max_transfer
        return self._snapshot("status", limit, read, descriptors.AcceleratorStatus.decode, retain)

    def log(self, *, retain: bool = False) -> descriptors.LogPage:
        """The accelerator's log, the oldest entry first; `retain` is as with `status`."""

        def read(size: int, retain: bool) -> bytes:
            return self.device.log_page(LOG_PAGE, size, lsi=self.id, rae=retain)

        return self._snapshot("log", MAX_LOG_SIZE, read, descriptors.LogPage.decode, retain)

    def _data(self, count: int, at: int) -> Layout:
        return fields.DataTransfer(count, self.id, at)

    def _firmware(self, firmware_id: int) -> MakeLayout:
        return lambda count, at: fields.FirmwareTransfer(count, self.id, firmware_id, at)

    def _global_control(self, operation: GlobalOperation) -> None:
        self.device.admin(AdminOpcode.GLOBAL_CONTROL, **encoded(fields.GlobalControl(operation)))

    def _control(self, operation: Operation, firmware: int = 0, arguments: bytes = b"") -> None:
        command = fields.Control(operation, self.id, firmware, descriptors.dwords(len(arguments)))
        self._io(IoOpcode.CONTROL, data_out=arguments or None, **encoded(command))

    def _io(self, opcode: IoOpcode, **command: Unpack[Fields]) -> Completion:
        """Send an I/O command; if it is refused, the error has what the log says of it."""
        try:
            return self.device.io(opcode, **command)
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
        view = memoryview(data).cast("B")
        if not view:
            raise InvalidRequest("there is no data to send")
        for start, size in pieces_of(len(view), self.device.max_transfer):
            piece: Buffer = view[start : start + size]
            if size % DWORD_SIZE:
                piece = descriptors.pad_to_dword(piece)
            here = layout(descriptors.dwords(size), at + start // DWORD_SIZE)
            self._io(opcode, data_out=piece, **encoded(here))
            done((start + size) / len(view))

    def _receive(
        self, opcode: IoOpcode, length: int, offset: int, layout: MakeLayout, done: Done
    ) -> bytes:
        at = _dword_offset(offset)
        pieces: list[bytes] = []
        for start, size in pieces_of(length, self.device.max_transfer):
            count = descriptors.dwords(size)
            here = encoded(layout(count, at + start // DWORD_SIZE))
            pieces.append(self._io(opcode, data_in_length=count * DWORD_SIZE, **here).data)
            done((start + size) / length)
        return b"".join(pieces)[:length]

    def _snapshot(
        self,
        what: str,
        limit: int,
        read: Callable[[int, bool], bytes],
        decode: Callable[[bytes], T],
        retain: bool,
    ) -> T:
        """Read a structure that begins with its length: first the length, retained, then all."""
        mistake: descriptors.DescriptorError
        with self.device.snapshots:
            for _ in range(SNAPSHOT_TRIES):
                try:
                    length = descriptors.leading_length(read(DWORD_SIZE, True))
                    if not DWORD_SIZE <= length <= limit:
                        raise descriptors.DescriptorError(f"it states a length of {length} bytes")
                    return decode(read(length, retain))
                except descriptors.DescriptorError as error:
                    mistake = error
                except PotashError:
                    raise
                except BaseException:  # an interrupt, or the end of a task
                    with suppress(PotashError):  # or whoever reads next is told of this moment
                        read(DWORD_SIZE, False)
                    raise
        raise DeviceMisbehaved(f"the {what} of accelerator {self.id} is unreadable: {mistake}")


def _dword_offset(offset: int) -> int:
    if offset % DWORD_SIZE:
        raise InvalidRequest(f"the offset {offset} is not a multiple of {DWORD_SIZE} bytes")
    return offset // DWORD_SIZE


def argument_bytes(argument: Buffer | int) -> Buffer:
    """An argument's bytes. Raises InvalidRequest for a number that has more than 32 bits."""
    if not isinstance(argument, int):
        return argument
    try:
        return argument.to_bytes(ARGUMENT_SIZE, "little", signed=argument < 0)
    except OverflowError:
        raise InvalidRequest(f"the argument {argument} has more than 32 bits") from None
