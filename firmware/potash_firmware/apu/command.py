"""Commands of the APU, and the answers of their handlers.

A handler returns an `Answer` or `Later`, or raises NvmeError; it never replies itself, so that no
command goes unanswered. It checks everything before it changes anything.
"""

from collections.abc import Callable
from dataclasses import dataclass

from csd_spec.status import VendorStatus
from nvme_spec.status import NvmeError, Status
from potash_firmware.apu.config import Config
from potash_firmware.apu.jobs import Jobs
from potash_firmware.apu.model import Accelerator, Log, Snapshot, Subsystem
from potash_firmware.mailbox.messages import Request
from potash_firmware.mailbox.shared import SharedBuffers

LogOf = tuple[Log, Snapshot]


@dataclass(frozen=True, slots=True)
class Context:
    """The objects that handlers use."""

    config: Config
    subsystem: Subsystem
    jobs: Jobs
    buffers: SharedBuffers
    engine_log: Callable[[int], LogOf | None] = lambda nsid: None
    """The log of a compute namespace's programs; None where there is none such."""

    def accelerator(self, identifier: int) -> Accelerator:
        """Raises NvmeError when there is none such."""
        try:
            return self.subsystem.accelerators[identifier]
        except KeyError:
            detail = f"there is no accelerator {identifier}"
            raise NvmeError(VendorStatus.INVALID_ACCELERATOR, detail) from None

    def idle_accelerator(self, identifier: int) -> Accelerator:
        """The accelerator, whose buffers no job uses. Raises NvmeError."""
        accelerator = self.accelerator(identifier)
        if accelerator.busy:
            detail = f"accelerator {identifier} runs a job"
            raise NvmeError(Status.COMMAND_SEQUENCE_ERROR, detail, dnr=False)
        return accelerator

    def data(self, request: Request) -> memoryview:
        """The data that the host has sent with a command."""
        if not request.length:
            return memoryview(b"")
        return self.buffers.slot(request.slot)[: request.length]


@dataclass(frozen=True, slots=True)
class Answer:
    """The command succeeds: `data` for the host, `result` for completion dword 0."""

    data: bytes | memoryview = b""
    result: int = 0


@dataclass(frozen=True, slots=True)
class Later:
    """The command succeeds as soon as these accelerators are idle; `then` comes first."""

    until: tuple[Accelerator, ...]
    then: Callable[[], None] = lambda: None


@dataclass(frozen=True, slots=True)
class IfSound:
    """The command succeeds if `image` is a program that can run: `decided` is called with None
    then, else with the reason, and raises NvmeError for the answer."""

    image: bytes
    decided: Callable[[str | None], None]


Result = Answer | Later | IfSound
Handler = Callable[[Context, Request], Result]


@dataclass(frozen=True, slots=True)
class Row:
    """A command; `always` when it needs no enabled subsystem."""

    opcode: int
    handler: Handler
    always: bool = False


Table = dict[int, Row]


def table(*rows: Row) -> Table:
    """Rows by opcode. Raises ValueError when two have the same."""
    by_opcode = {row.opcode: row for row in rows}
    if len(by_opcode) != len(rows):
        raise ValueError("two commands have one opcode")
    return by_opcode
