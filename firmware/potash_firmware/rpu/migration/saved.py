"""The saved state of a drive, and how another process continues from it.

Not in here is what media have: blocks, the sidecar and the flash, which are either handed over or
copied; but media and values that are memory are in the state. Addresses are those of the guest.

A state is a header, and named sections of bytes; one of them is JSON.

    header      magic "PTSHMIGR", version, CRC-32 and length of all that follows
    section     length of its name, length of its bytes; the name; the bytes
    contents    address and length of a piece, and its bytes; what is in no piece is zero
    values      lengths of a key and its value, key and value; ascending by keys

Little endian. Whoever sends a state may send anything: what has another form is a ValueError.
"""

import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from typing import Annotated, Any, NamedTuple

from nvme_spec.computational import MemoryRange
from nvme_spec.key_value import LONGEST_KEY
from nvme_spec.logs import ErrorLogEntry, FirmwareSlotLog, SmartLog
from nvme_spec.opcodes import AdminOpcode
from nvme_spec.queues import FLAGS_FUSE_MASK, SUBMISSION_ENTRY_SIZE, Fuse, SubmissionEntry
from nvme_spec.zoned import MOST_CHANGED_ZONES
from potash_device.board import Board, SavedBoard
from potash_device.media.flash import Flash
from potash_device.media.shapes import NamespaceShape
from potash_device.media.sidecar import Sidecar
from potash_device.media.store import Media, MemoryMedia
from potash_device.saved import Number, decode, encode, exactly, fits
from potash_firmware.rpu.commands import Commands
from potash_firmware.rpu.compute.programs import SavedProgram
from potash_firmware.rpu.controller import Controller
from potash_firmware.rpu.features.values import SavedFeatures
from potash_firmware.rpu.host_reservations import NO_NOTIFICATIONS, SavedNotifications
from potash_firmware.rpu.interrupts import Interrupts
from potash_firmware.rpu.lifecycle import ControllerState, Lifecycle
from potash_firmware.rpu.logs.health import SavedHealth
from potash_firmware.rpu.namespaces.key_value import KeyValueNamespace
from potash_firmware.rpu.namespaces.memory import ComputeNamespace, MemoryNamespace
from potash_firmware.rpu.namespaces.zones import ZoneChanges
from potash_firmware.rpu.reservations import SavedReservation
from potash_firmware.rpu.times import namespace_sizes
from potash_wire.records import U8, U16, U32, U64, Range, Record, Stored
from pyvfio_user.protocol import Buffer

VERSION = 1
"""Version of the format and of the sections' meaning; a state of another version is refused."""

_MAGIC = b"PTSHMIGR"
_HEADER = Record(tuple[Annotated[bytes, Stored("8s")], U32, U32, U64])
_SECTION = Record(tuple[U16, U64])
_PIECE = Record(tuple[U64, U64])
_PAIR = Record(tuple[U8, U32])
_LONGEST_PIECE = 1 << 20

STATE_LIMIT = 64 << 20
"""Bytes of a state that are no contents of memories."""

RECORD = "drive"
"""The section that is a record: `SavedDrive`."""
TIME = "time"
"""The section of the state of the modelled drive, if it moves."""
EXTENSIONS = "extensions"
"""The section of the states of extensions, of a drive that has some."""
_APU = "apu-"
"""Begins the names of what accelerators hold."""

Slot = Annotated[int, fits(FirmwareSlotLog.active_slot)]


class SavedNamespace(NamedTuple):
    """A namespace, which the other drive has to have, too."""

    nsid: U32
    csi: U8
    size: int
    block_size: int
    attached: bool


class SavedCommand(NamedTuple):
    """A command that waits for what only a host can bring: an event, or the other half."""

    qid: U16
    entry: Annotated[bytes, Range(SUBMISSION_ENTRY_SIZE, SUBMISSION_ENTRY_SIZE)]


class SavedCompute(NamedTuple):
    """The saved state of a compute namespace: programs, and memory range sets by their
    identifiers."""

    nsid: U32
    programs: tuple[SavedProgram, ...]
    sets: tuple[tuple[U16, tuple[MemoryRange, ...]], ...]


class SavedDrive(NamedTuple):
    """Everything else. Times are in milliseconds."""

    identity: tuple[str, str, str]
    """Serial number, model, and name of the subsystem."""
    namespaces: tuple[SavedNamespace, ...]
    accelerators: tuple[tuple[int, int], ...]
    """Identifier and size of the arena of each."""
    record: Number
    """The number of the sidecar's record: the media are those that this state is of."""
    board: SavedBoard
    lifecycle: str
    features: SavedFeatures
    commands: tuple[SavedCommand, ...]
    events: tuple[int, ...]
    silent: tuple[tuple[Annotated[int, Range(0, 7)], int], ...]
    warned: Annotated[int, fits(SmartLog.critical_warning)]
    errors: tuple[Annotated[bytes, Range(ErrorLogEntry.SIZE, ErrorLogEntry.SIZE)], ...]
    health: tuple[tuple[str, int], ...]
    changed_namespaces: tuple[U32, ...]
    changed_zones: tuple[tuple[U32, tuple[int, ...]], ...]
    """Numbers of zones, by namespace: no more than the log page has to know of."""
    keep_alive: tuple[U32, U32]
    active_slot: Slot
    next_slot: Slot | None
    download: tuple[tuple[U32, bytes], ...]
    reachability: tuple[bool, Number]
    compute: tuple[SavedCompute, ...]
    unreported: tuple[bool, bool]
    reservations: tuple[SavedReservation, ...] = ()
    notifications: SavedNotifications = NO_NOTIFICATIONS
    ana: tuple[tuple[U32, U8, Number], ...] = ()
    """Groups of asymmetric access, their states and change counts, of a drive that has it."""


def save(controller: Controller, lifecycle: Lifecycle, interrupts: Interrupts) -> bytes:
    """The state of a drive that is quiet."""
    board = controller.board
    board.interrupts.hold(interrupts.held)
    session = {name: part.save() for name, part in _session(controller).items()}
    events, silent = controller.reports.events.save()
    drive = SavedDrive(
        identity=_identity(controller),
        namespaces=_namespaces(controller),
        accelerators=_accelerators(controller),
        record=board.storage.sidecar.number,
        board=board.save(),
        lifecycle=lifecycle.state.name,
        commands=tuple(
            SavedCommand(command.queue.qid, command.entry.encode())
            for command in controller.outstanding.commands
        ),
        events=events,
        silent=silent,
        health=tuple(controller.health.save().items()),
        changed_zones=tuple(
            (ns.nsid, tuple(ns.zones.changes.of(controller.identifier)[: MOST_CHANGED_ZONES + 1]))
            for ns in controller.namespaces.zoned
        ),
        active_slot=controller.firmware.active,
        next_slot=controller.firmware.next,
        compute=tuple(
            SavedCompute(nsid, state.programs.save(), tuple(state.sets.describe().items()))
            for nsid, state in controller.compute.states.items()
        ),
        unreported=controller.subsystem.unreported,
        reservations=controller.reservations.every.save(),
        **session,
    )
    sections = {RECORD: [encode(drive)]}
    if states := controller.persistence.states.encode():
        sections[EXTENSIONS] = [states]
    if controller.timing is not None and (state := controller.timing.save()):
        sections[TIME] = [state]
    for name, media in _memories(controller).items():
        sections[name] = pieces_of(media)
    for name, namespace in _values(controller).items():
        sections[name] = [
            part
            for key, value in namespace.media.pairs()
            for part in (_PAIR.encode((len(key), len(value))), key, value)
        ]
    return join(sections)


class Loadable:
    """A state that a drive can go on with, as far as can be seen without touching anything.

    Raises ValueError for what is none, for the state of another drive, and for one of extensions
    that this drive does not have.
    """

    def __init__(self, controller: Controller, state: Buffer) -> None:
        sections = split(state)
        self.drive = decode(SavedDrive, sections.pop(RECORD, b""), STATE_LIMIT)
        self.health: SavedHealth = exactly(SavedHealth, dict(self.drive.health))
        self.states = sections.pop(EXTENSIONS, b"{}")
        controller.persistence.states.load(self.states, only_check=True)
        self.time = bytes(sections.pop(TIME, b""))
        self.contents = sections
        for what, theirs, ours in (
            ("another identity", self.drive.identity, _identity(controller)),
            ("other namespaces", self.drive.namespaces, _namespaces(controller)),
            ("other accelerators", self._accelerators(controller), _accelerators(controller)),
            ("other memories", set(sections), {*_memories(controller), *_values(controller)}),
        ):
            if theirs != ours:
                raise ValueError(f"the state is of a drive with {what}")
        for name, media in _memories(controller).items():
            check_contents(sections[name], media.size)
        for name, namespace in _values(controller).items():
            check_pairs(sections[name], namespace.shape)

    def _accelerators(self, controller: Controller) -> tuple[tuple[int, int], ...]:
        """The accelerators of the state. An arena that holds nothing may have any size: it was
        smaller in version 1.0."""
        ours, sections = dict(_accelerators(controller)), self.contents
        return tuple(
            (key, size if sections.get(f"{_APU}arena{key}") else ours.get(key, size))
            for key, size in self.drive.accelerators
        )

    @property
    def has_accelerators(self) -> bool:
        """Accelerators hold something, so that an APU has to begin with that."""
        return any(self.contents[name] for name in self.contents if name.startswith(_APU))

    def check_media(self, board: Board) -> None:
        """Raise ValueError where the media are not those that the state is of."""
        sidecar = board.storage.sidecar
        if "sidecar" in self.contents:
            sidecar = Sidecar(MemoryMedia.create(sidecar.media.size))
            fill(sidecar.media, self.contents["sidecar"])
        sidecar.load()
        slots = {1, *Flash(board.storage.flash.media, sidecar).listed}
        if sidecar is not board.storage.sidecar:
            sidecar.media.close()
        if sidecar.number != self.drive.record:
            raise ValueError("the media are not those that the state is of")
        if not {self.drive.active_slot, self.drive.next_slot or 1} <= slots:
            raise ValueError("a firmware slot is active that has no image")

    def fill(self, controller: Controller) -> None:
        """Have memories hold what they did. Raises MediaError."""
        for name, media in _memories(controller).items():
            fill(media, self.contents[name])
        for name, namespace in _values(controller).items():
            namespace.media.replace(_pairs(self.contents[name]))

    def load(self, controller: Controller, lifecycle: Lifecycle, commands: Commands) -> None:
        """Have the host's session, which a reset ends. Raises ValueError and NvmeError; the
        function has to be reset then."""
        drive, board = self.drive, controller.board
        board.load(drive.board)
        if drive.lifecycle not in ControllerState.__members__:
            raise ValueError(f"a controller cannot be {drive.lifecycle}")
        for name, part in _session(controller).items():
            part.load(getattr(drive, name))
        controller.go_on(*drive.unreported)
        lifecycle.load(ControllerState[drive.lifecycle])
        every = controller.namespaces.every.items()
        compute = {nsid for nsid, ns in every if isinstance(ns, ComputeNamespace)}
        for saved in drive.compute:
            if saved.nsid not in compute:
                raise ValueError(f"namespace {saved.nsid} runs no programs")
            state = controller.compute.of(saved.nsid)
            state.programs.restore(saved.programs)
            state.sets.load(dict(saved.sets))
        for command in drive.commands:
            _begin_again(commands, board, command)
        controller.reports.events.load(drive.events, drive.silent)
        changed_zones = dict(drive.changed_zones)
        for zoned in controller.namespaces.zoned:
            numbers = range(len(zoned.zones.every))
            changed = {*changed_zones.get(zoned.nsid, ())} & {*numbers}
            zoned.zones.changes = ZoneChanges(changed)

    def load_lasting(self, controller: Controller) -> None:
        """Have what outlives a reset."""
        drive, firmware = self.drive, controller.firmware
        slots = {1, *firmware.flash.images}  # without images that were damaged
        firmware.active = drive.active_slot if drive.active_slot in slots else 1
        firmware.next = drive.next_slot if drive.next_slot in slots else None
        controller.health.load(self.health)
        controller.reservations.every.load(drive.reservations)
        controller.thermal.update()
        controller.persistence.states.load(self.states)
        if controller.timing is not None:
            controller.timing.load(self.time, *namespace_sizes(controller.namespaces))
        for part in (controller.ocp, controller.power, controller.host_memory):
            if part is not None:  # as the features say that have been loaded
                part.configure()


def memory_size(controller: Controller) -> int:
    """Bytes of all memories whose contents are in a state."""
    memories = sum(memory.size for memory in _memories(controller).values())
    values = sum(ns.size for ns in _values(controller).values())
    return memories + (1 + _PAIR.size) * values  # each pair has at least a byte of a key


def _begin_again(commands: Commands, board: Board, saved: SavedCommand) -> None:
    queue = board.queues.submissions.get(saved.qid)
    if queue is None:
        raise ValueError("a command has no queue")
    entry = SubmissionEntry.decode(saved.entry)
    event_request = not saved.qid and entry.opcode == AdminOpcode.ASYNCHRONOUS_EVENT_REQUEST
    if not event_request and not (saved.qid and entry.flags & FLAGS_FUSE_MASK == Fuse.FIRST):
        raise ValueError("a command waits that never does")
    commands.begin_again(queue, entry)


def _session(controller: Controller) -> dict[str, Any]:
    """The parts whose states are fields of `SavedDrive` as they are, by the names of these."""
    parts = {
        "features": controller.features,
        "notifications": controller.reservations,
        "warned": controller.alerts,
        "errors": controller.reports.errors,
        "changed_namespaces": controller.reports.changed_namespaces,
        "keep_alive": controller.keep_alive,
        "download": controller.download,
        "reachability": controller.reachability,
        "ana": controller.ana,
    }
    return {name: part for name, part in parts.items() if part is not None}


def _identity(controller: Controller) -> tuple[str, str, str]:
    identity = controller.settings.identity
    return identity.serial, identity.model, identity.nqn


def _namespaces(controller: Controller) -> tuple[SavedNamespace, ...]:
    return tuple(
        SavedNamespace(
            nsid,
            ns.csi,
            0 if isinstance(ns, ComputeNamespace) else ns.size,
            ns.shape.block_size,
            ns.shape.attached,
        )
        for nsid, ns in sorted(controller.namespaces.every.items())
    )


def _accelerators(controller: Controller) -> tuple[tuple[int, int], ...]:
    return tuple((key, memory.size) for key, memory in controller.apu.buffers.arenas.items())


def _memories(controller: Controller) -> dict[str, Media]:
    """The memories of a drive whose contents are in its state, by the names of their sections."""
    board, buffers = controller.board, controller.apu.buffers
    every = controller.namespaces.every.items()
    memories: dict[str, Media | None] = {
        **{f"memory{nsid}": ns.media for nsid, ns in every if isinstance(ns, MemoryNamespace)},
        **{f"media{nsid}": media for nsid, media in board.storage.media.items()},
        "sidecar": board.storage.sidecar.media,
        "flash": board.storage.flash.media,
        "cmb": None if board.cmb is None else board.cmb.memory.media,
        f"{_APU}state": MemoryMedia(buffers.state.fd, buffers.state.size),
        **{
            f"{_APU}arena{key}": MemoryMedia(memory.fd, memory.size)
            for key, memory in buffers.arenas.items()
        },
    }
    return {name: media for name, media in memories.items() if isinstance(media, MemoryMedia)}


def _values(controller: Controller) -> dict[str, KeyValueNamespace]:
    """The namespaces whose values are in the state of a drive, by the names of their sections."""
    every = controller.namespaces.values
    return {f"values{ns.nsid}": ns for ns in every if ns.media.path is None}


def join(sections: Mapping[str, Sequence[Buffer]]) -> bytes:
    """A state of these sections, each in parts: what is large is copied once."""
    parts: list[Buffer] = []
    for name, content in sections.items():
        encoded = name.encode()
        parts += [_SECTION.encode((len(encoded), sum(map(len, content)))), encoded, *content]
    checksum = reduce(lambda crc, part: zlib.crc32(part, crc), parts, 0)
    header = _HEADER.encode((_MAGIC, VERSION, checksum, sum(map(len, parts))))
    return b"".join((header, *parts))


def split(state: Buffer) -> dict[str, memoryview]:
    """The sections of a state, as views of it. Raises ValueError."""
    magic, version, checksum, length = _HEADER.decode_from(state)
    if magic != _MAGIC:
        raise ValueError("this is no state of a drive")
    if version != VERSION:
        raise ValueError(f"the state has version {version}, and {VERSION} is what is understood")
    body = memoryview(state)[_HEADER.size :]
    if len(body) != length:
        raise ValueError(f"the state has {len(body)} bytes of {length}")
    if zlib.crc32(body) != checksum:
        raise ValueError("the state is damaged")
    sections: dict[str, memoryview] = {}
    while body:
        named, size = _SECTION.decode_from(body)
        at = _SECTION.size + named
        if at + size > len(body):
            raise ValueError("a section leaves the state")
        sections[str(body[_SECTION.size : at], "utf-8")] = body[at : at + size]
        body = body[at + size :]
    return sections


def pieces_of(media: Media) -> list[bytes]:
    """The bytes of memory that are not zero, as far as whole pages go, in parts."""
    parts: list[bytes] = []
    for start, length in media.data_ranges(0, media.size):
        for at in range(start, start + length, _LONGEST_PIECE):
            piece = os.pread(media.fd, min(_LONGEST_PIECE, start + length - at), at)
            if any(piece):
                parts += [_PIECE.encode((at, len(piece))), piece]
    return parts


def check_contents(packed: memoryview, size: int) -> None:
    """Raise ValueError for what are no contents of `size` bytes of memory."""
    if any(at + len(piece) > size for at, piece in _pieces(packed)):
        raise ValueError(f"a piece is not in the {size} bytes of its memory")


def fill(media: Media, packed: memoryview) -> None:
    """Have memory hold contents that were checked, and zeroes elsewhere. Raises MediaError."""
    media.punch(0, media.size)
    for at, piece in _pieces(packed):
        media.write_from([piece], at)


def check_pairs(packed: memoryview, shape: NamespaceShape) -> None:
    """Raise ValueError for what are no keys and values of a namespace."""
    last, used = b"", 0
    for key, value in _pairs(packed):
        used += len(key) + len(value)
        if not last < key or len(key) > LONGEST_KEY or len(value) > shape.max_value:
            raise ValueError("a key or a value is none of a key value namespace")
        last = key
    if used > shape.size:
        raise ValueError(f"keys and values have {used} bytes, for which there is no room")


def _pairs(rest: memoryview) -> Iterator[tuple[bytes, memoryview]]:
    while rest:
        length, size = _PAIR.decode_from(rest)
        at, end = _PAIR.size + length, _PAIR.size + length + size
        if end > len(rest):
            raise ValueError("a value leaves its section")
        yield bytes(rest[_PAIR.size : at]), rest[at:end]
        rest = rest[end:]


def _pieces(rest: memoryview) -> Iterator[tuple[int, memoryview]]:
    while rest:
        at, length = _PIECE.decode_from(rest)
        if length > len(rest) - _PIECE.size:
            raise ValueError("a piece leaves its section")
        yield at, rest[_PIECE.size : _PIECE.size + length]
        rest = rest[_PIECE.size + length :]
