"""The programs of one compute namespace by program index: loading, checking, activation.

A program is a sealed memfd of the RPU, which never parses it: an engine checks it at its first
activation. A device-defined program is only a number.

Source: Computational Programs Command Set 1.1, as implementers have it; where they disagree
(pieces in any order, replacement, statuses of an empty index), see docs/supported.md.
"""

import fcntl
import os
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Annotated

from nvme_spec import computational
from nvme_spec.status import NvmeError, Status
from potash_firmware.mailbox.messages import Outcome, next_handle
from potash_firmware.rpu.compute.engine import Execution, ProgramEngine, Shared
from potash_firmware.rpu.scheduler import Scheduler, Steps, Wait
from potash_firmware.rpu.settings import ComputeSettings
from potash_wire.records import U8, U16, Range

LOAD_SHIFT = 3
"""LPG: the size of a program is a multiple of 2**3 bytes, as that of an ELF object is."""

PROGRAM_TYPES = (computational.FIRST_VENDOR_PROGRAM_TYPE,)
"""PTYPEs that can be loaded, all of them eBPF objects. The standard's value for eBPF is not
known."""

MIB = 1 << 20

GAP_LIMIT = 1024
"""Gaps between the pieces of one program that has not come whole: a host chooses their order."""

_SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


@dataclass(eq=False, slots=True)
class Program:
    """The program at an index. `image` is the number of a device-defined program, which has no
    size."""

    image: Shared | int
    ptype: int = computational.DEVICE_DEFINED_TYPE
    pit: int = computational.ProgramIdentifierType.NONE
    pid: int = 0
    size: int = 0
    missing: list[tuple[int, int]] = field(default_factory=list)
    """First byte and end of each gap that is still to be loaded."""
    active: bool = False
    sound: bool = False
    priority: int = 0
    """The priority that it declares, once it is known to be sound."""
    check: Future[Execution] | None = None
    """An engine finds out whether it is sound."""

    @property
    def device_defined(self) -> bool:
        """The program exists from the start, and cannot be unloaded."""
        return isinstance(self.image, int)

    def describe(self) -> computational.ProgramDescriptor:
        """The program's entry in the Program List."""
        occupancy = computational.ProgramOccupancy.DOWNLOADED
        if self.device_defined:
            occupancy = computational.ProgramOccupancy.DEVICE_DEFINED
        return computational.ProgramDescriptor(
            peocc=occupancy, act=self.active, pit=self.pit, ptype=self.ptype, pid=self.pid
        )


@dataclass(frozen=True)
class SavedProgram:
    """A program as a value; its image, zeroes in the gaps, is None for a device-defined one."""

    index: U16
    image: bytes | None
    ptype: U8
    pit: Annotated[int, Range(0, 7)]
    pid: int
    missing: tuple[tuple[int, int], ...]
    active: bool


@dataclass(eq=False, repr=False)
class Programs:
    """Program indexes of one namespace.

    `in_use` says whether an Execute command uses a program, `has_room` whether the drive can hold
    another one.
    """

    nsid: int
    limits: ComputeSettings
    engine: ProgramEngine
    scheduler: Scheduler
    in_use: Callable[[Program], bool]
    has_room: Callable[[], bool]
    _programs: dict[int, Program] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.clear()

    # Loading.

    def check_piece(self, fields: computational.LoadProgram) -> None:
        """Raise NvmeError for a piece that cannot be loaded; nothing has changed then."""
        program = self._downloadable(fields.pind)
        _require(fields.psize > 0, Status.INVALID_PROGRAM_DATA, "an empty program")
        _require(
            fields.psize % (1 << LOAD_SHIFT) == 0,
            Status.INVALID_PROGRAM_DATA,
            f"the size of a program is no multiple of {1 << LOAD_SHIFT}",
        )
        _require(fields.numb > 0, Status.INVALID_FIELD, "a piece of no bytes")
        _require(
            fields.loff + fields.numb <= fields.psize,
            Status.PROGRAM_TOO_BIG,
            "a piece that leaves its program",
        )
        _require(
            fields.pit
            in (computational.ProgramIdentifierType.NONE, computational.ProgramIdentifierType.PUID),
            Status.INVALID_FIELD,
            f"program identifiers of type {fields.pit} are not there",
        )
        if program is None:
            self._check_new(fields)
            return
        _require(program.missing, Status.PROGRAM_IN_USE, f"index {fields.pind} holds a program")
        _require(fields.ptype == program.ptype, Status.INVALID_PROGRAM_TYPE, "another type")
        _require(
            (fields.psize, fields.pit, _pid(fields)) == (program.size, program.pit, program.pid),
            Status.INVALID_FIELD,
            "size or identifier are not those of the program's other pieces",
        )
        if len(program.missing) >= GAP_LIMIT:
            raise NvmeError(
                Status.INSUFFICIENT_PROGRAM_RESOURCES, detail="the program has too many gaps"
            )

    def _check_new(self, fields: computational.LoadProgram) -> None:
        _require(
            fields.ptype in PROGRAM_TYPES,
            Status.INVALID_PROGRAM_TYPE,
            f"programs of type {fields.ptype:#x} cannot be loaded",
        )
        if not self.has_room():
            raise NvmeError(
                Status.INSUFFICIENT_PROGRAM_RESOURCES, "the drive has no room for it", dnr=False
            )
        loaded = sum(program.size for program in self._programs.values())
        _require(
            loaded + fields.psize <= self.limits.program_memory * MIB,
            Status.MAXIMUM_PROGRAM_BYTES_EXCEEDED,
            f"{loaded} bytes are loaded already",
        )

    def load(self, fields: computational.LoadProgram, piece: memoryview) -> None:
        """Store a piece that has passed `check_piece`. Raises NvmeError."""
        program = self._programs.get(fields.pind)
        try:
            program = _new_program(fields) if program is None else program
            assert isinstance(program.image, Shared)
            _write(program.image.fd, piece, fields.loff)
            program.missing = [
                gap
                for start, end in program.missing
                for gap in (
                    (start, min(end, fields.loff)),
                    (max(start, fields.loff + fields.numb), end),
                )
                if gap[0] < gap[1]
            ]
            if not program.missing:
                fcntl.fcntl(program.image.fd, fcntl.F_ADD_SEALS, _SEALS)
        except OSError as error:
            raise NvmeError(
                Status.INSUFFICIENT_PROGRAM_RESOURCES, dnr=False, detail=str(error)
            ) from None
        self._programs[fields.pind] = program

    def unload(self, index: int) -> None:
        """Forget a program, whole or not. Raises NvmeError."""
        program = self._downloadable(index)
        if program is None:
            raise _empty(index)
        self._require_idle(program, index)
        _require(not program.active, Status.PROGRAM_IN_USE, f"program {index} is activated")
        del self._programs[index]
        self._drop(program)

    @property
    def loaded(self) -> int:
        return sum(not program.device_defined for program in self._programs.values())

    # Activation.

    def activate(self, index: int) -> Steps[None]:
        """Activate a program, once it is known to be sound. Raises NvmeError."""
        program = self._occupied(index)
        if program.active:
            return
        _require(not program.missing, Status.INVALID_PROGRAM_DATA, f"program {index} is not whole")
        active = sum(program.active for program in self._programs.values())
        _require(
            active < self.limits.activated,
            Status.MAXIMUM_PROGRAMS_ACTIVATED,
            f"{active} programs are activated",
        )
        if program.sound:
            program.active = True
            return
        self._require_idle(program, index)
        self.scheduler.start(self._check(program))
        outcome = (yield Wait(program.check)).outcome
        if outcome in (Outcome.LOST, Outcome.CANCELLED):
            raise NvmeError(Status.INTERNAL_ERROR, dnr=False, detail="the engine was lost")
        if outcome is not Outcome.RETURNED:
            raise NvmeError(Status.INVALID_PROGRAM_DATA, detail=f"program {index} cannot run")
        yield from self.activate(index)  # the program may be another one by now

    def _check(self, program: Program) -> Steps[None]:
        """Have the engine check a program, also for a command that is gone by then."""
        assert isinstance(program.image, Shared)
        program.check = self.engine.check(self.nsid, program.image)
        checked = yield program.check
        program.check = None
        program.sound, program.priority = checked.outcome is Outcome.RETURNED, checked.value

    def deactivate(self, index: int) -> None:
        """Deactivate a program. Raises NvmeError."""
        program = self._occupied(index)
        self._require_idle(program, index)
        program.active = False

    # Use.

    def runnable(self, index: int) -> Program:
        """A program that can be executed. Raises NvmeError."""
        program = self._at(index)
        if program is None:
            raise NvmeError(
                Status.INVALID_PROGRAM_INDEX, detail=f"there is no program at index {index}"
            )
        _require(program.active, Status.PROGRAM_NOT_ACTIVATED, f"program {index}")
        return program

    def describe(self) -> list[computational.ProgramDescriptor]:
        """An entry of the Program List for each index."""
        return [
            self._programs[index].describe()
            if index in self._programs
            else computational.ProgramDescriptor()
            for index in range(self.limits.programs)
        ]

    def clear(self) -> None:
        """Forget every program but the device-defined ones, which are as at the start."""
        for program in self._programs.values():
            self._drop(program)
        limits = self.limits
        self._programs = {
            index: Program(index, active=index < limits.activated, sound=True, priority=priority)
            for index, priority in enumerate(self.engine.device_defined[: limits.programs])
        }

    # Moving to another process.

    def save(self) -> tuple[SavedProgram, ...]:
        return tuple(_saved(index, program) for index, program in self._programs.items())

    def restore(self, saved: Iterable[SavedProgram]) -> None:
        """Have these programs and no others. Raises NvmeError and ValueError.

        None of them counts as sound, which is found out again when it is next activated.
        """
        self.clear()
        for record in saved:
            if record.image is None:
                if record.index not in self._programs:
                    raise ValueError(f"there is no device-defined program {record.index}")
            else:
                bounds = [0, *(bound for gap in record.missing for bound in gap), len(record.image)]
                for start, end in zip(bounds[::2], bounds[1::2], strict=True):
                    if start < end:
                        self._load_again(record, start, memoryview(record.image)[start:end])
            program = self._occupied(record.index)
            program.active = record.active and not program.missing

    def _load_again(self, saved: SavedProgram, start: int, piece: memoryview) -> None:
        assert saved.image is not None
        fields = computational.LoadProgram(
            pind=saved.index,
            ptype=saved.ptype,
            pit=saved.pit,
            psize=len(saved.image),
            pid=saved.pid,
            numb=len(piece),
            loff=start,
        )
        self.check_piece(fields)
        self.load(fields, piece)

    def _at(self, index: int) -> Program | None:
        _require(
            index < self.limits.programs,
            Status.INVALID_PROGRAM_INDEX,
            f"the last program index is {self.limits.programs - 1}",
        )
        return self._programs.get(index)

    def _occupied(self, index: int) -> Program:
        program = self._at(index)
        if program is None:
            raise _empty(index)
        return program

    def _downloadable(self, index: int) -> Program | None:
        program = self._at(index)
        _require(
            program is None or not program.device_defined,
            Status.PROGRAM_INDEX_NOT_DOWNLOADABLE,
            f"program {index} is device-defined",
        )
        return program

    def _require_idle(self, program: Program, index: int) -> None:
        if program.check is not None or self.in_use(program):
            raise NvmeError(Status.PROGRAM_IN_USE, dnr=False, detail=f"program {index} is in use")

    def _drop(self, program: Program) -> None:
        if isinstance(program.image, Shared):
            self.engine.forget(program.image.handle)
            os.close(program.image.fd)


def _saved(index: int, program: Program) -> SavedProgram:
    return SavedProgram(
        index,
        os.pread(program.image.fd, program.size, 0) if isinstance(program.image, Shared) else None,
        program.ptype,
        program.pit,
        program.pid,
        tuple(program.missing),
        program.active,
    )


def _new_program(fields: computational.LoadProgram) -> Program:
    """A program of which nothing has come. Raises OSError."""
    fd = os.memfd_create(f"potash-program{fields.pind}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, fields.psize)
    except OSError:
        os.close(fd)
        raise
    return Program(
        Shared(next_handle(), fd, fields.psize),
        fields.ptype,
        fields.pit,
        _pid(fields),
        fields.psize,
        [(0, fields.psize)],
    )


def _pid(fields: computational.LoadProgram) -> int:
    return fields.pid if fields.pit else 0


def _write(fd: int, piece: memoryview, offset: int) -> None:
    while piece:
        written = os.pwrite(fd, piece, offset)
        piece, offset = piece[written:], offset + written


def _empty(index: int) -> NvmeError:
    return NvmeError(Status.NO_PROGRAM, detail=f"there is no program at index {index}")


def _require(condition: object, status: Status, detail: str) -> None:
    """Raise NvmeError, which a retry would meet again, where `condition` does not hold."""
    if not condition:
        raise NvmeError(status, detail=detail)
