"""A compute namespace: programs that the drive runs on ranges of its memory namespaces.

NVM Express Computational Programs Command Set Specification; `nvme_spec.computational` lists
unverified layouts.
"""

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, TypedDict, Unpack

from csd_spec.chains import ChainError, ChainStep
from csd_spec.chains import encode as encode_chain
from csd_spec.opcodes import DWORD_SIZE, ChainOpcode
from csd_spec.reporting import Count
from nvme_spec.computational import (
    FIRST_VENDOR_PROGRAM_TYPE,
    MEMORY_RANGE_SIZE,
    RANGE_SET_LIST_HEADER_SIZE,
    ActivationSelect,
    ComputeOpcode,
    Execute,
    LoadProgram,
    LoadProgramSelect,
    MemoryRange,
    ProgramActivation,
    ProgramDescriptor,
    ProgramIdentifierType,
    ProgramListHeader,
    ProgramOccupancy,
    RangeSetDescriptor,
    RangeSetManagement,
    RangeSetSelect,
)
from nvme_spec.computational import ComputeNamespace as ComputeNamespaceData
from nvme_spec.identify.capabilities import CommandSet
from nvme_spec.logs import LogPage as LogId
from nvme_spec.opcodes import AdminOpcode
from potash.sdk.commands import AnyNamespace, Layout, encoded, pieces_of
from potash.sdk.errors import DeviceMisbehaved, DeviceNotFound, InvalidRequest, PotashError
from potash.sdk.memory_namespace import Bytes
from potash.sdk.progress import Progress, silent
from potash.sdk.targets import Content, content_of
from potash.sdk.transport import Buffer, Completion, PendingCommand

EBPF = FIRST_VENDOR_PROGRAM_TYPE
"""The program type of eBPF object files, if the drive's configuration has no other."""


@dataclass(frozen=True)
class Program:
    """A program of a compute namespace."""

    index: Annotated[Count, "The program's index."]
    built_in: Annotated[bool, "True if the program is device-defined."]
    active: Annotated[bool, "True if the program is activated."]
    type: Annotated[Count, "The program's type; 0 for a device-defined program."]
    identifier: Annotated[Count, "The identifier that the program was loaded with; 0 for none."]


class Given(TypedDict, total=False):
    """The keyword arguments of an execution."""

    parameters: tuple[int, int]
    """CPARAM1 and CPARAM2, 64 bits each; 0 by default."""
    data: Buffer
    """The command's data for the program; not with Linux's driver, which has no field for its
    length."""
    timeout: float | None
    """Maximum run time in seconds; the default is that of other commands."""


class ComputeNamespace(AnyNamespace):
    """One compute namespace of a device. Its commands raise what `Device`'s do.

    All but `execute` and reading need root in a guest.
    """

    csi = CommandSet.COMPUTE

    def memory_nsid(self) -> int:
        """The first memory namespace of the drive. Raises DeviceNotFound."""
        found = self.device.active_namespaces(CommandSet.MEMORY)
        if not found:
            raise DeviceNotFound("the device has no memory namespace")
        return found[0]

    def identify(self) -> ComputeNamespaceData:
        """The limits: the Identify Namespace data structure of the command set."""
        return ComputeNamespaceData(self._structure())

    def programs(self) -> list[Program]:
        """The programs by index, without empty indexes (log page 82h)."""
        found = []
        for index, one in enumerate(self._indexes()):
            if one.peocc != ProgramOccupancy.EMPTY:
                built_in = one.peocc == ProgramOccupancy.DEVICE_DEFINED
                found.append(Program(index, built_in, bool(one.act), one.ptype, one.pid))
        return found

    def free_index(self) -> int:
        """The first program index that is empty. Raises PotashError where there is none."""
        for index, one in enumerate(self._indexes()):
            if one.peocc == ProgramOccupancy.EMPTY:
                return index
        raise PotashError(f"no program index of namespace {self.nsid} is empty; unload a program")

    def _indexes(self) -> list[ProgramDescriptor]:
        header = self._log(LogId.PROGRAM_LIST, ProgramListHeader.SIZE)
        size = ProgramDescriptor.SIZE
        length = ProgramListHeader.SIZE + ProgramListHeader(header).numd * size
        page = self._log(LogId.PROGRAM_LIST, length)
        starts = range(ProgramListHeader.SIZE, length, size)
        return [ProgramDescriptor(page[start : start + size]) for start in starts]

    def load(
        self,
        index: int,
        program: Content,
        *,
        kind: int = EBPF,
        identifier: int = 0,
        activate: bool = True,
        progress: Progress = silent,
    ) -> None:
        """Load a program and, by default, activate it.

        Args:
            index: the program index, which has to be empty.
            program: an object file's path, or its contents.
            kind: the program type (PTYPE).
            identifier: any 64-bit number (PUID); 0 for none.

        Raises CommandFailed for a program that the drive refuses, and OSError for a file that
        cannot be read.
        """
        data = bytearray(content_of(program))
        unit = 1 << self.identify().lpg
        data += bytes(-len(data) % unit)
        pit = ProgramIdentifierType.PUID if identifier else ProgramIdentifierType.NONE
        for start, size in pieces_of(len(data), self.device.max_transfer // unit * unit or unit):
            layout = LoadProgram(
                index, kind, LoadProgramSelect.LOAD, pit, len(data), identifier, size, start
            )
            self._admin(AdminOpcode.LOAD_PROGRAM, layout, data[start : start + size])
            progress("loading the program", (start + size) / len(data))
        if activate:
            self.activate(index)

    def unload(self, index: int) -> None:
        """Unload a program, which must not be activated."""
        self._admin(AdminOpcode.LOAD_PROGRAM, LoadProgram(index, sel=LoadProgramSelect.UNLOAD))

    def activate(self, index: int) -> None:
        """Activate a program, so that it can be executed."""
        self._activation(index, ActivationSelect.ACTIVATE)

    def deactivate(self, index: int) -> None:
        """Deactivate a program."""
        self._activation(index, ActivationSelect.DEACTIVATE)

    def range_sets(self) -> dict[int, list[Bytes]]:
        """The memory range sets by their identifiers (log page 84h)."""
        limits = self.identify()
        largest = RangeSetDescriptor.SIZE + limits.maxmemr * MEMORY_RANGE_SIZE
        length = RANGE_SET_LIST_HEADER_SIZE + limits.maxmemrs * largest
        page = self._log(LogId.MEMORY_RANGE_SETS, length)
        found, at = {}, RANGE_SET_LIST_HEADER_SIZE
        for _ in range(int.from_bytes(page[:4], "little")):
            head = at + RangeSetDescriptor.SIZE
            described = RangeSetDescriptor(page[at:head].ljust(RangeSetDescriptor.SIZE, b"\0"))
            at = head + described.numr * MEMORY_RANGE_SIZE
            if at > length:
                raise DeviceMisbehaved("the device has more range sets than it can have")
            ranges = MemoryRange.decode_list(page[head:at])
            found[described.rsid] = [Bytes(one.nsid, one.start, one.length) for one in ranges]
        return found

    def create_ranges(self, ranges: Iterable[Bytes]) -> int:
        """Create a memory range set; its identifier (RSID)."""
        data = _descriptors(ranges)
        layout = RangeSetManagement(RangeSetSelect.CREATE, numr=len(data) // MEMORY_RANGE_SIZE)
        return self._admin(AdminOpcode.MEMORY_RANGE_SET_MANAGEMENT, layout, data).result & 0xFFFF

    def delete_ranges(self, rsid: int) -> None:
        """Delete a memory range set, which no running program may use."""
        layout = RangeSetManagement(RangeSetSelect.DELETE, rsid=rsid)
        self._admin(AdminOpcode.MEMORY_RANGE_SET_MANAGEMENT, layout)

    def execute(
        self, index: int, ranges: int | Sequence[Bytes] = (), **given: Unpack[Given]
    ) -> int:
        """Run an activated program to its end; its return value, 64 bits.

        `submit` takes the same arguments. Raises CommandFailed, also for a program that faults, and
        what `submit` raises.
        """
        return self.submit(index, ranges, **given).result().result

    def submit(
        self, index: int, ranges: int | Sequence[Bytes] = (), **given: Unpack[Given]
    ) -> PendingCommand:
        """Have an activated program run, without waiting for it; its return value is the result of
        the command.

        Args:
            index: the program index.
            ranges: the identifier of a range set, or the ranges themselves.
            given: what `Given` says.

        Raises InvalidRequest for a number that does not fit, or for `data` with Linux's driver.
        """
        inline = b"" if isinstance(ranges, int) else _descriptors(ranges)
        data = given.get("data", b"")
        sent = inline + bytes(data)
        carries = self.device.transport.carries_cdw4
        if data and not carries:
            raise InvalidRequest(
                "Linux has no place for the length of a program's data; put it into a memory range"
            )
        execute = Execute(
            index,
            ranges if isinstance(ranges, int) else 0,
            len(inline) // MEMORY_RANGE_SIZE,
            len(sent) if carries else 0,
            *given.get("parameters", (0, 0)),
        )
        opcode, timeout = ComputeOpcode.EXECUTE_PROGRAM, given.get("timeout")
        return self._submit(opcode, execute, data_out=sent or None, timeout=timeout)

    def execute_chain(self, steps: Sequence[ChainStep], *, timeout: float | None = None) -> int:
        """Run activated programs one after another; the last one's return value, 64 bits.

        A `csd_spec.chains.ChainStep` has the index of its program, its memory ranges and its
        parameters. Raises CommandFailed with the status of the first one that fails, after which no
        other runs, and with the number of steps that have ended before it as `result`; and
        InvalidRequest for steps that cannot be. Only drives of Potash have this command.
        """
        try:
            sent = encode_chain(steps)
        except ChainError as error:
            raise InvalidRequest(str(error)) from None
        return self.device.io(
            ChainOpcode.EXECUTE_CHAIN,
            nsid=self.nsid,
            csi=self.csi,
            cdw10=len(sent) // DWORD_SIZE,
            data_out=sent,
            timeout=timeout,
        ).result

    def _activation(self, index: int, select: ActivationSelect) -> None:
        layout = ProgramActivation(index, select)
        self._admin(AdminOpcode.PROGRAM_ACTIVATION_MANAGEMENT, layout)

    def _admin(self, opcode: int, layout: Layout, data: Buffer | None = None) -> Completion:
        return self.device.admin(opcode, nsid=self.nsid, data_out=data, **encoded(layout))

    def _log(self, lid: int, length: int) -> bytes:
        return self.device.log_page(lid, length, nsid=self.nsid, csi=self.csi)


def _descriptors(ranges: Iterable[Bytes]) -> bytes:
    try:
        return b"".join(MemoryRange(one.nsid, one.length, one.start).encode() for one in ranges)
    except struct.error as error:
        raise InvalidRequest(f"a memory range does not fit in its descriptor: {error}") from None
