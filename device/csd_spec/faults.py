"""Fault injection: the kinds of faults, and the commands that add and clear them.

Two vendor specific Admin commands, which are Potash extensions with opcodes that the platform
leaves free. A device has them only if it was started with them enabled. As in the accelerator
commands, CDW10 is the length of the data in dwords, and CDW12 the operation.
"""

from collections.abc import Iterable
from enum import IntEnum, IntFlag
from typing import Annotated

from csd_spec.descriptors import Buffer, Descriptor, DescriptorError
from csd_spec.opcodes import DWORD_SIZE
from csd_spec.reporting import Form, Key
from potash_wire.records import U8, U16, U32, U64, At, Number, Stored
from potash_wire.words import Cdws, CommandDwords, bits

FAULT_SIZE = 64
FAULT_DWORDS = FAULT_SIZE // DWORD_SIZE
FAULT_LIST_HEADER_SIZE = 16
MOST_FAULTS = 256
"""Faults that a device keeps, those that are spent included."""

ANY = 0xFFFF
"""In place of an opcode, a queue or a vector: any."""
ALL_FAULTS = 0
"""In place of an identifier: clear every fault."""


class FaultOperation(IntEnum):
    """CDW12 of Fault Send."""

    ADD = 0
    CLEAR = 1


class FaultSend(CommandDwords):
    """Fault Send (F1h): CDW12 operation, CDW13 identifier to clear.

    Add takes one fault, and dword 0 of its completion is the identifier that it has from then on.
    """

    operation: int = bits(12, 0, 31)
    identifier: int = bits(13, 0, 31, default=ALL_FAULTS)

    def encode(self) -> Cdws:
        """The six dwords, of which CDW10 is the length of the data."""
        dwords = FAULT_DWORDS if self.operation == FaultOperation.ADD else 0
        return (dwords, 0, self.operation, self.identifier, 0, 0)


class FaultReceive(CommandDwords):
    """Fault Receive (F2h): CDW10 is the number of dwords to return, of the list of faults."""

    dwords: int = bits(10, 0, 31)


class FaultKind(IntEnum):
    """Kind of a fault."""

    STATUS = 1
    """A command is not carried out and ends with a status."""
    DELAY = 2
    """A command is begun later."""
    LOST = 3
    """A command is fetched and never answered."""
    MEDIA_ERROR = 4
    """Blocks cannot be read, or written."""
    MEDIA_DELAY = 5
    """Blocks are read, or written, later."""
    INTERRUPT = 6
    """Completions are posted without an interrupt."""
    APU_DEATH = 7
    """The application processor is gone; the device starts another one."""
    UNREACHABLE = 8
    """Namespaces do not reach each other, as long as the fault is there."""
    RESET_RECOMMENDED = 9
    """The drive recommends to reset zones that are full, as long as the fault is there."""
    FINISH_RECOMMENDED = 10
    """The drive recommends to finish zones that are open or closed, as long as the fault is
    there."""
    PROGRAM_FAILURE = 11
    """Programs of the modelled flash fail, as many as `times` of the next."""
    ACCESS_STATE = 12
    """The state of the controller's access to an ANA group changes, before an I/O command for one
    of its namespaces; or when `delay` has passed."""


COMMAND_KINDS = frozenset({FaultKind.STATUS, FaultKind.DELAY, FaultKind.LOST})
MEDIA_KINDS = frozenset({FaultKind.MEDIA_ERROR, FaultKind.MEDIA_DELAY})
ZONE_KINDS = frozenset({FaultKind.RESET_RECOMMENDED, FaultKind.FINISH_RECOMMENDED})
LASTING = ZONE_KINDS | {FaultKind.UNREACHABLE}
"""Kinds that are in effect until the fault is cleared, and are never triggered."""
DELAYS = frozenset({FaultKind.DELAY, FaultKind.MEDIA_DELAY})


LEAST_STATE, MOST_STATE = 1, 4
"""ANA states: optimized, non-optimized, inaccessible, persistent loss."""


class FaultFlags(IntFlag):
    """Properties of a fault."""

    ADMIN = 1 << 0
    """Admin commands; I/O commands without it."""
    DNR = 1 << 1
    """The status has Do Not Retry."""
    READS = 1 << 2
    WRITES = 1 << 3
    """A media fault affects reads, writes, or both; at least one of these bits is set."""
    AT_START = 1 << 4
    """The APU dies of a Start, which fails; without it, once a job has been started."""
    AT_ONCE = 1 << 5
    """The APU dies when the fault is added."""


class Fault(Descriptor, least_size=FAULT_SIZE):
    """One fault, 64 bytes. A host that adds one sets `identifier` and `triggered` to 0."""

    kind: Annotated[FaultKind, Stored("B"), At(2)]
    flags: Annotated[FaultFlags, Stored("B")] = FaultFlags(0)
    opcode: U16 = ANY
    queue: U16 = ANY
    """The queue; for an interrupt, the vector."""
    nsid: U32 = 0
    """0 for any."""
    status: U16 = 0
    controller: U16 = 0
    """The controller's identifier and 1; 0 for any."""
    lba: Annotated[U64, At(16)] = 0
    blocks: U64 = 0
    """0 for all."""
    delay: U32 = 0
    """Microseconds."""
    times: U32 = 0
    """Number of times that it is triggered; 0: until it is cleared."""
    after: U32 = 0
    """Number of matches that are skipped first."""
    identifier: Annotated[
        U16,
        At(0),
        Key("id"),
        Form(minimum=1, maximum=65535),
        "The fault's number, with which it is cleared.",
    ] = 0
    triggered: Annotated[U32, At(44), Form(minimum=0), "Number of times that it was triggered."] = 0
    group: U32 = 0
    """The ANA group whose state changes."""
    state: U8 = 0
    """The ANA state that it changes to."""
    transition: Annotated[U32, At(56)] = 0
    """Microseconds in the ANA Change state before that."""
    lasting: U32 = 0
    """Microseconds after which the ANA state goes back; 0 for never."""

    @property
    def admin(self) -> bool:
        """True if the fault applies to Admin commands."""
        return FaultFlags.ADMIN in self.flags

    @property
    def spent(self) -> Annotated[bool, Key()]:
        """True if the fault's count is used up."""
        return 0 < self.times <= self.triggered

    def check(self) -> None:
        """Raise DescriptorError for a fault that no device can have."""
        if self.kind is FaultKind.STATUS and not 0 < self.status < 0x800:
            raise DescriptorError(f"a command cannot fail with the status {self.status:#x}")
        if self.kind in DELAYS and not self.delay:
            raise DescriptorError("a delay takes some time")
        if self.kind in MEDIA_KINDS and not self.flags & (FaultFlags.READS | FaultFlags.WRITES):
            raise DescriptorError("a fault of the media is one of reads, of writes, or of both")
        if self.lba and not self.blocks:
            raise DescriptorError("a range of blocks has a length")
        if self.lba + self.blocks > 1 << 64:
            raise DescriptorError("the range of blocks ends behind the last one that can be named")
        if self.admin and self.blocks:
            raise DescriptorError("Admin commands have no blocks")
        if self.kind in LASTING and (self.times or self.after):
            raise DescriptorError("a fault of this kind lasts until it is cleared")
        if self.kind is FaultKind.PROGRAM_FAILURE and (self.after or not self.times):
            raise DescriptorError("so many of the next programs fail, and none is skipped")
        if self.kind is FaultKind.ACCESS_STATE:
            if not self.group or not LEAST_STATE <= self.state <= MOST_STATE:
                raise DescriptorError("an ANA group changes to one of the four states")
            if self.lasting and self.state == MOST_STATE:
                raise DescriptorError("persistent loss does not end by itself")
            if self.delay and (self.after or self.times != 1):
                raise DescriptorError("a time comes once")
        if FaultFlags.AT_ONCE in self.flags and (self.after or self.times != 1):
            raise DescriptorError("the APU dies now once")
        if FaultFlags.AT_ONCE | FaultFlags.AT_START in self.flags:
            raise DescriptorError("the APU dies at one moment")

    @classmethod
    def decode(cls, data: Buffer) -> "Fault":
        """The fault that bytes begin with. Raises DescriptorError."""
        return cls.decode_head(data)._checked()

    def _checked(self) -> "Fault":
        fault = self._replace(flags=FaultFlags(self.flags & sum(FaultFlags)))
        fault.check()
        return fault


class _FaultList(Descriptor, least_size=FAULT_LIST_HEADER_SIZE, total=Number("I", 0)):
    faults: Annotated[tuple[Fault, ...], Number("I", 4)]


def encode_faults(faults: Iterable[Fault]) -> bytes:
    """The list of faults: its length in bytes, how many, and the faults."""
    return _FaultList(tuple(faults)).encode()


def decode_faults(buffer: Buffer) -> list[Fault]:
    """Raises DescriptorError for an inconsistent or truncated list."""
    return [fault._checked() for fault in _FaultList.decode(buffer).faults]
