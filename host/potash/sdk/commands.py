"""The commands of a controller, one method each, over any transport.

NVM Express Base Specification 2.0, section 5.
"""

import threading
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import pairwise
from typing import ClassVar, TypeAlias, TypedDict, TypeVar, Unpack, cast

from csd_spec.descriptors import dwords
from csd_spec.opcodes import TIMING_LOG_PAGE, TRAFFIC_LOG_PAGE, LogPage
from csd_spec.placement import PAGE_SIZE as PLACEMENT_LOG_SIZE
from csd_spec.placement import PlacementLog
from csd_spec.timing import SIZE as TIMING_LOG_SIZE
from csd_spec.timing import TimingLog
from csd_spec.traffic import HEADER_SIZE, PAGE_SIZE, TrafficLog
from nvme_spec import commands
from nvme_spec.identify.capabilities import CommandSet
from nvme_spec.identify.lists import IDENTIFY_SIZE, NAMESPACE_LIST_ENTRIES, decode_namespace_list
from nvme_spec.identify.structures import Cns, IdentifyController
from nvme_spec.logs import AsyncEvent, SmartLog
from nvme_spec.logs import LogPage as LogId
from nvme_spec.opcodes import AdminOpcode, DataDirection, data_direction
from nvme_spec.queues import EntryDwords
from nvme_spec.registers import MINIMUM_PAGE_SHIFT
from nvme_spec.words import CommandDwords
from potash.sdk.errors import DeviceMisbehaved, DeviceNotFound, InvalidRequest, PotashError
from potash.sdk.transport import Buffer, Completion, PendingCommand, Request, Transport

DEFAULT_TIMEOUT = 30.0
"""Seconds for one command, as Linux gives an I/O command."""
ALL_NAMESPACES = 0xFFFF_FFFF

PageT = TypeVar("PageT", TimingLog, TrafficLog, PlacementLog)


class Dwords(TypedDict, total=False):
    """Command dwords 2 to 4 and 10 to 15, as keyword arguments; the default is 0."""

    cdw2: int
    cdw3: int
    cdw4: int
    """Used only if the transport has a place for it."""
    cdw10: int
    cdw11: int
    cdw12: int
    cdw13: int
    cdw14: int
    cdw15: int


class Fields(Dwords, total=False):
    """The keyword arguments of a command."""

    nsid: int | None
    """Namespace; by default, that of the device for an I/O command."""
    data_out: Buffer | None
    data_in_length: int
    """Bytes to receive."""
    csi: int
    """The command set of an I/O command, if it is not the NVM one, for messages."""
    timeout: float | None
    """Seconds that the command may take, if not as many as the device was opened with."""


Layout: TypeAlias = CommandDwords | EntryDwords
"""The dwords of a command; see `nvme_spec.commands` and `csd_spec.fields`."""


def encoded(layout: Layout) -> Dwords:
    """The keyword arguments for a layout. Raises InvalidRequest for a value that does not fit."""
    try:
        if isinstance(layout, EntryDwords):
            fields = layout.fields()
            if "mptr" in fields:
                fields["cdw4"] = fields.pop("mptr")
            return cast(Dwords, fields)
        cdw10, cdw11, cdw12, cdw13, cdw14, cdw15 = layout.encode()
    except ValueError as error:
        raise InvalidRequest(str(error)) from None
    return Dwords(cdw10=cdw10, cdw11=cdw11, cdw12=cdw12, cdw13=cdw13, cdw14=cdw14, cdw15=cdw15)


class Commands:
    """One controller.

    Every method that sends a command raises CommandFailed, CommandTimeout or DeviceGone, and
    InvalidRequest for what cannot be sent.

    Attributes:
        target: name by which it was opened, such as "/dev/nvme0n1"; None for a custom transport.
    """

    target: str | None = None

    def __init__(self, transport: Transport, *, timeout: float = DEFAULT_TIMEOUT) -> None:
        self.transport = transport
        self.timeout = timeout
        self.snapshots = threading.Lock()
        """Held while a thread reads a structure in two steps: in between, the device retains the
        structure, and would give others the same, older than what they have done meanwhile."""
        self._max_transfer: int | None = None
        self._nsid = transport.nsid

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.target or 'without a name'}>"

    def admin(self, opcode: int, **fields: Unpack[Fields]) -> Completion:
        """Send an Admin command and wait for it; `submit` takes the same arguments."""
        return self.submit(opcode, admin=True, **fields).result()

    def io(self, opcode: int, **fields: Unpack[Fields]) -> Completion:
        """Send an I/O command and wait for it; `submit` takes the same arguments."""
        return self.submit(opcode, **fields).result()

    def submit(
        self, opcode: int, *, admin: bool = False, **fields: Unpack[Fields]
    ) -> PendingCommand:
        """Send a command without waiting for it: `cdw10=` and the rest of `Fields`.

        If `queue_depth` commands are in flight, it waits for one of them first. Raises
        InvalidRequest if the data's direction is not that of the opcode, and TypeError for a field
        that there is not.
        """
        if not fields.keys() <= Fields.__optional_keys__:
            wrong = min(fields.keys() - Fields.__optional_keys__)
            keywords = ", ".join(sorted(Fields.__optional_keys__))
            raise TypeError(f"a command has no {wrong!r}; it has {keywords}")
        nsid = fields.get("nsid")
        if nsid is None:
            nsid = 0 if admin else self.nsid
        cdws = (
            fields.get("cdw10", 0),
            fields.get("cdw11", 0),
            fields.get("cdw12", 0),
            fields.get("cdw13", 0),
            fields.get("cdw14", 0),
            fields.get("cdw15", 0),
        )
        early = fields.get("cdw2", 0), fields.get("cdw3", 0), fields.get("cdw4", 0)
        if (
            not all(0 <= value < 1 << 32 for value in (nsid, *cdws, *early))
            or not 0 <= opcode < 1 << 8
        ):
            raise InvalidRequest("a field of the command is out of its range")
        data_out, data_in_length = fields.get("data_out"), fields.get("data_in_length", 0)
        if data_in_length < 0:
            raise InvalidRequest(f"{data_in_length} bytes cannot be received")
        direction = data_direction(opcode)
        if data_out and not direction & DataDirection.HOST_TO_CONTROLLER:
            raise InvalidRequest(f"opcode {opcode:02X}h does not send data")
        if data_in_length and not direction & DataDirection.CONTROLLER_TO_HOST:
            raise InvalidRequest(f"opcode {opcode:02X}h does not receive data")
        size = len(data_out or b"") + data_in_length
        if size > self.transport.max_transfer:
            raise InvalidRequest(
                f"{size} bytes are too many for one command; the maximum is "
                f"{self.transport.max_transfer}"
            )
        timeout, csi = fields.get("timeout"), fields.get("csi", CommandSet.NVM)
        if early[2] and not self.transport.carries_cdw4:
            raise InvalidRequest("Linux has no place for dword 4 of a command")
        request = Request(admin, opcode, nsid, cdws, data_out, data_in_length, *early, csi)
        return self.transport.submit(request, self.timeout if timeout is None else timeout)

    def completions(self, submitted: Iterable[PendingCommand]) -> Iterator[Completion]:
        """The completions, in order, of commands that iterating over `submitted` sends.

        Up to `queue_depth` are in flight; none is when the iteration ends, also with an error.
        """
        in_flight: deque[PendingCommand] = deque()
        try:
            for command in submitted:
                in_flight.append(command)
                if len(in_flight) == self.transport.queue_depth:
                    yield in_flight.popleft().result()
            while in_flight:
                yield in_flight.popleft().result()
        finally:
            for command in in_flight:
                with suppress(PotashError):
                    command.result()

    def identify(self) -> IdentifyController:
        """The Identify Controller data structure."""
        return IdentifyController(self.identify_data(Cns.CONTROLLER))

    def identify_data(self, cns: int, nsid: int = 0, csi: int = 0) -> bytes:
        """The 4096 bytes of any Identify data structure, for a command set where it has several."""
        layout = encoded(commands.Identify(cns, csi=csi))
        return self.admin(
            AdminOpcode.IDENTIFY, nsid=nsid, data_in_length=IDENTIFY_SIZE, **layout
        ).data

    def active_namespaces(self, csi: CommandSet | None = None) -> list[int]:
        """Identifiers of the active namespaces, ascending; those of one command set if it is named.
        Raises CommandFailed (Invalid Field) for a command set that the controller lacks."""
        one_set = csi is not None
        cns = Cns.COMMAND_SET_ACTIVE_NAMESPACE_LIST if one_set else Cns.ACTIVE_NAMESPACE_LIST
        found: list[int] = []
        while True:
            last = found[-1] if found else 0
            more = decode_namespace_list(self.identify_data(cns, last, csi or CommandSet.NVM))
            if any(one >= two for one, two in pairwise([last, *more])):
                raise DeviceMisbehaved("the device's list of namespaces is out of order")
            found += more
            if len(more) < NAMESPACE_LIST_ENTRIES:
                return found

    def smart_log(self) -> SmartLog:
        """The SMART / Health Information log of the whole controller."""
        return SmartLog(self.log_page(LogId.SMART, SmartLog.SIZE, nsid=ALL_NAMESPACES))

    def timing_log(self) -> TimingLog:
        """The log page on modelled time, an extension. Raises DeviceMisbehaved for another page."""
        return self._decoded(TimingLog, TIMING_LOG_PAGE, TIMING_LOG_SIZE)

    def traffic(self, since: TrafficLog | None = None) -> TrafficLog:
        """Commands and bytes moved: since the device has started, or since an earlier result, and
        then with the completions in modelled time since that, 1024 at most. Raises DeviceMisbehaved
        for another page, and CommandFailed (Invalid Log Page) by a drive without this extension."""
        length = HEADER_SIZE if since is None else PAGE_SIZE
        log = self._decoded(TrafficLog, TRAFFIC_LOG_PAGE, length)
        return log if since is None else log.since(since)

    def placement_log(self) -> PlacementLog:
        """The log page on placement handles, an extension: the bytes of each. Raises
        DeviceMisbehaved for another page, and CommandFailed (Invalid Log Page) by a drive without
        flexible data placement."""
        return self._decoded(PlacementLog, LogPage.PLACEMENT_HANDLES, PLACEMENT_LOG_SIZE)

    def _decoded(self, kind: type[PageT], lid: int, length: int) -> PageT:
        """A log page. Raises DeviceMisbehaved for another page."""
        page = self.log_page(lid, length)
        try:
            return kind.decode(page)
        except ValueError as error:
            raise DeviceMisbehaved(str(error)) from None

    def log_page(
        self, lid: int, length: int, *, lsi: int = 0, rae: bool = False, nsid: int = 0, csi: int = 0
    ) -> bytes:
        """`length` bytes of a log page, in as many commands as that takes.

        `rae` (Retain Asynchronous Event) applies to the last command; it is set in the others.
        """
        pieces: list[bytes] = []
        for start, size in pieces_of(length, self.max_transfer):
            last = start + size == length
            command = commands.GetLogPage(
                lid, dwords(size) - 1, rae=rae or not last, lsi=lsi, offset=start, csi=csi
            )
            completion = self.admin(
                AdminOpcode.GET_LOG_PAGE,
                nsid=nsid,
                data_in_length=command.length,
                **encoded(command),
            )
            pieces.append(completion.data[:size])
        return b"".join(pieces)

    @property
    def reports_events(self) -> bool:
        """True if `await_event` can be used: over vfio-user; Linux does not pass events on."""
        return self.transport.reports_events

    def await_event(self, timeout: float) -> AsyncEvent | None:
        """The device's next asynchronous event; None when there is none within `timeout` seconds.

        The device reports no further event of its type before its log page has been read.
        """
        event = self.transport.await_event(timeout)
        return None if event is None else AsyncEvent(event)

    @property
    def block_device(self) -> int | None:
        """The number of the block device that was opened; None when it was none."""
        return self.transport.block_device

    @property
    def nsid(self) -> int:
        """The namespace that was opened, or the controller's first."""
        if self._nsid is None:
            active = self.active_namespaces()
            if not active:
                raise DeviceNotFound("the device has no namespace")
            self._nsid = active[0]
        return self._nsid

    @property
    def max_transfer(self) -> int:
        """Maximum bytes that one command may move: the controller's MDTS and the transport's."""
        if self._max_transfer is None:
            mdts = self.identify().mdts
            limit = self.transport.max_transfer
            self._max_transfer = min(limit, 1 << MINIMUM_PAGE_SHIFT + mdts) if mdts else limit
        return self._max_transfer

    def reset(self) -> None:
        """Reset the controller."""
        self._max_transfer = None
        self.transport.reset()


def pieces_of(total: int, limit: int) -> Iterator[tuple[int, int]]:
    """Start and size of the pieces, none larger than `limit`, that make up `total`. Raises
    InvalidRequest for a negative total."""
    if total < 0:
        raise InvalidRequest(f"{total} is not a length; give one of 0 or more")
    for start in range(0, total, limit):
        yield start, min(limit, total - start)


class AnyNamespace:
    """One namespace of a device, whatever its command set."""

    csi: ClassVar = CommandSet.NVM
    """The command set."""

    def __init__(self, device: Commands, nsid: int) -> None:
        self.device = device
        self.nsid = nsid

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.nsid} of {self.device!r}>"

    def _submit(self, opcode: int, layout: Layout, **fields: Unpack[Fields]) -> PendingCommand:
        """Send an I/O command of its command set to the namespace. Raises InvalidRequest."""
        command: Fields = {**fields, **encoded(layout), "nsid": self.nsid, "csi": self.csi}
        return self.device.submit(opcode, **command)

    def _structure(self) -> bytes:
        """Its Identify data structure of its command set."""
        return self.device.identify_data(Cns.COMMAND_SET_NAMESPACE, self.nsid, self.csi)
