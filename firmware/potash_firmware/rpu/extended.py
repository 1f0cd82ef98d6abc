"""A drive with extensions: rows of the tables for what they register, and the drive as their
functions see it.

A function that raises anything but NvmeError, returns nonsense or takes too long ends its command
with Internal Error, and one line in the log names its file and line.
"""

import logging
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ParamSpec, TypeVar

from csd_spec.opcodes import DWORD_SIZE
from nvme_spec.commands import GetLogPage
from nvme_spec.identify.capabilities import CommandSet
from nvme_spec.logs import CommandEffects
from nvme_spec.opcodes import AdminOpcode
from nvme_spec.queues import STATUS_MASK
from nvme_spec.status import NvmeError, Status
from nvme_spec.words import Word
from nvme_spec.words import field as bits
from potash_device.controller.queues import SubmissionQueue
from potash_firmware import extension_limits, extensions
from potash_firmware.extension_limits import ExtensionError, limited, shown, why
from potash_firmware.extension_registry import (
    Extensions,
    Registered,
    RegisteredCommand,
    RegisteredFeature,
    RegisteredPage,
)
from potash_firmware.naming import CommandNames
from potash_firmware.rpu.admin import ADMIN_COMMANDS, FAULT_COMMANDS, log_pages
from potash_firmware.rpu.admin.log_pages import PAGES, Page, Scope
from potash_firmware.rpu.admin.placement import PLACEMENT_ADMIN, PLACEMENT_IO
from potash_firmware.rpu.command import Command, Result, Steps
from potash_firmware.rpu.command_sets import COMMANDS
from potash_firmware.rpu.commands import Commands
from potash_firmware.rpu.controller import Controller
from potash_firmware.rpu.dispatch import NO_EFFECT, Handler, NamespaceUse, Row, Table
from potash_firmware.rpu.extension_drive import Drive, Request
from potash_firmware.rpu.features.table import FEATURES, Feature, Limits, Value
from potash_firmware.rpu.reservations import Access

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

LARGEST_RESULT = (1 << 64) - 1
"""Dwords 0 and 1 of a completion."""
LEAST_CLOSING = 0.001
"""Seconds that a command's generator has for its end where others have used up the time limit."""


class Extended:
    """The extensions of one drive. Raises ExtensionError where they conflict with what the drive
    has."""

    def __init__(self, registered: Extensions) -> None:
        self.registered = registered
        self.drives: list[Drive] = []
        """The drive as functions see it for the host of each controller."""
        self._closing = extension_limits.STEP_LIMIT
        """Seconds that are left for all generators which a reset or an abort closes together."""
        builtin_admin = ADMIN_COMMANDS | FAULT_COMMANDS | PLACEMENT_ADMIN
        builtin_io = {**COMMANDS, CommandSet.NVM: COMMANDS[CommandSet.NVM] | PLACEMENT_IO}
        for opcode, command in registered.admin.items():
            if (row := builtin_admin.get(opcode)) is not None:
                raise _conflict(command, f"Admin opcode {opcode:02X}h", row.opcode)
        for (csi, opcode), command in registered.io.items():
            if csi not in builtin_io:
                raise ExtensionError(f"{command}: no drive has the command set {csi.name}")
            if (row := builtin_io[csi].get(opcode)) is not None:
                raise _conflict(command, f"I/O opcode {opcode:02X}h", row.opcode)
        for lid, page in registered.pages.items():
            if lid in PAGES:
                raise _conflict(page, f"log page {lid:02X}h", _key(PAGES, lid))
        for fid, feature in registered.features.items():
            if fid in FEATURES:
                raise _conflict(feature, f"feature {fid:02X}h", _key(FEATURES, fid))

    @property
    def names(self) -> CommandNames:
        """The names of commands."""
        found = {
            (True, 0, opcode): command.name for opcode, command in self.registered.admin.items()
        }
        found |= {(False, *key): command.name for key, command in self.registered.io.items()}
        return {key: name.lower().replace(" ", "_") for key, name in found.items()}

    def admin(self, table: Table) -> Table:
        """The Admin commands of a drive, and those of its extensions."""
        pages = PAGES | {lid: self._page(page) for lid, page in self.registered.pages.items()}
        pages[0] = replace(PAGES[0], make=partial(log_pages.supported, pages))
        read = partial(log_pages.get_log_page, pages=pages)
        return {
            **table,
            **{opcode: self._row(command) for opcode, command in self.registered.admin.items()},
            AdminOpcode.GET_LOG_PAGE: replace(table[AdminOpcode.GET_LOG_PAGE], handler=read),
        }

    def io(self, tables: Mapping[CommandSet, Table]) -> dict[CommandSet, Table]:
        """The I/O commands of a drive, and those of its extensions."""
        found = dict(tables)
        for (csi, opcode), command in self.registered.io.items():
            found[csi] = {**found[csi], opcode: self._row(command)}
        return found

    def _row(self, command: RegisteredCommand) -> Row:
        return Row(
            command.opcode,
            self._handler(command),
            _access(command),
            NamespaceUse.ONE if command.namespace else NamespaceUse.NONE,
            CommandEffects.LBCC if command.writes else NO_EFFECT,
        )

    def _handler(self, registered: RegisteredCommand) -> Handler:
        def handle(controller: Controller, command: Command) -> Result:
            given = extensions.Command(*command.entry)
            given.queue = command.queue.qid
            length = self._length(registered, given)
            if registered.data == "write":
                given.data = bytes(controller.transfer.receive(command, length))
            elif registered.data == "read":  # memory that is not there is refused before
                controller.transfer.views(command, length, write=True)
            drive = self.drives[controller.identifier]
            result = self.call(registered, registered.function, drive, given)
            if isinstance(result, Generator):
                return self._finished_later(controller, command, registered, length, result)
            return self._finished(controller, command, registered, length, result)

        return handle

    def _length(self, registered: RegisteredCommand, command: extensions.Command) -> int:
        """Bytes of a command's data. Raises NvmeError."""
        if registered.data == "none":
            return 0
        size = registered.size
        if size is None:
            return command.cdw10 * DWORD_SIZE
        if not callable(size):
            return size
        length = self.call(registered, size, command)
        if type(length) is not int or length < 0:
            raise self._failure(registered, f"its size is {shown(length)}")
        return length

    def _finished_later(
        self,
        controller: Controller,
        command: Command,
        registered: RegisteredCommand,
        length: int,
        generator: Generator[Any, Any, Any],
    ) -> Steps:
        result = yield from self._steps(registered, generator, command.queue)
        return self._finished(controller, command, registered, length, result)

    def _finished(
        self,
        controller: Controller,
        command: Command,
        registered: RegisteredCommand,
        length: int,
        result: object,
    ) -> int:
        """Dwords 0 and 1 of the completion; the data is sent. Raises NvmeError."""
        if registered.data == "read":
            data = self._bytes(registered, result, length)
            controller.transfer.send(command, data, length)
            return 0
        if result is None:
            return 0
        value = int.__int__(result) if isinstance(result, int) else -1
        if not 0 <= value <= LARGEST_RESULT:
            raise self._failure(registered, f"it returns {shown(result)}, which is no dword")
        return value

    def _bytes(self, registered: Registered, result: object, most: int) -> bytes:
        try:
            data = memoryview(result).tobytes()  # type: ignore[arg-type]  # which is the question
        except (TypeError, ValueError):
            raise self._failure(
                registered, f"it returns {shown(result)}, which is no bytes"
            ) from None
        if len(data) > most:
            raise self._failure(registered, f"it returns {len(data)} bytes, more than {most}")
        return data

    def _steps(
        self, registered: Registered, generator: Generator[Any, Any, Any], queue: SubmissionQueue
    ) -> Generator[Any, Any, Any]:
        """The steps of a function that waits, each watched; the result is the function's."""
        value: Any = None
        error: NvmeError | None = None
        try:
            while True:
                ended, request = self.call(registered, _step, generator, value, error)
                if ended:
                    return request
                if not isinstance(request, Request):
                    what = f"it yields {shown(request)}, for which it cannot wait"
                    raise self._failure(registered, what)
                value, error = None, None
                try:
                    value = yield from request.steps(queue)
                except NvmeError as failed:
                    error = failed
        finally:
            self.drives[0].changed()
            begun = time.monotonic()
            try:
                limited(max(self._closing, LEAST_CLOSING), generator.close)
            except BaseException as failed:  # noqa: BLE001 - it is a user's code
                self._failure(registered, why(failed, *registered.place), registered.name)
            self._closing -= time.monotonic() - begun

    def _page(self, page: RegisteredPage) -> Page:
        def make(controller: Controller, command: Command, fields: GetLogPage) -> bytes:
            found = self.call(page, page.function, self.drives[controller.identifier])
            return self._bytes(page, found, page.size).ljust(page.size, b"\0")

        return Page(Scope.CONTROLLER, make)

    def attach(self, controller: Controller, tables: Mapping[CommandSet, Table]) -> None:
        """A controller of the drive has these extensions; `tables` are its I/O commands."""
        self.drives.append(Drive(controller, tables, controller.persistence.states))
        if (sink := controller.board.trace.sink) is not None:
            sink("rpu.extensions", {"names": [[*key, name] for key, name in self.names.items()]})
        controller.features.rows = dict(controller.features.rows) | {
            fid: self._feature(feature) for fid, feature in self.registered.features.items()
        }

    def commands(self, controller: Controller, *args: Any, **kwargs: Any) -> Commands:
        """The commands of a controller, which these extensions observe if they have to."""
        if not self.registered.completed:
            return Commands(controller, *args, **kwargs)
        return _ObservedCommands(controller, *args, **kwargs, extended=self)

    def _feature(self, feature: RegisteredFeature) -> Feature:
        def check(value: Value, nsid: int, limits: Limits) -> None:
            new = value.data.ljust(feature.size, b"\0") if feature.size else value.dword
            if (result := self.call(feature, feature.function, self.drives[0], new)) is not None:
                said = f"it returns {shown(result)}; to refuse a value, it raises NvmeError"
                raise self._failure(feature, said)

        default, size = feature.default, feature.size
        return Feature(
            _Whole,
            default=lambda dword: default if isinstance(default, int) else 0,
            default_data=lambda nsid, limits: default if isinstance(default, bytes) else b"",
            check=check,
            taken=lambda dword: size,
            given=lambda dword: size,
            saveable=feature.saved,
            of_drive=True,
        )

    def call(
        self, registered: Registered, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Call a function of an extension, or take a step of its generator. Raises NvmeError."""
        self._closing = extension_limits.STEP_LIMIT
        self.drives[0].changed()
        if function is registered.function:
            self.registered.calls[registered] += 1
        try:
            return limited(extension_limits.STEP_LIMIT, function, *args, **kwargs)
        except NvmeError as error:
            if not isinstance(error.status, int) or not 0 < error.status <= STATUS_MASK:
                raise self._failure(registered, f"its status is {shown(error.status)}") from None
            if error.detail:
                log.info("%s: %s", registered.name, error)
            raise
        except BaseException as error:  # noqa: BLE001 - it is a user's code
            raise self._failure(
                registered, why(error, *registered.place), registered.name
            ) from None

    def _failure(
        self, registered: Registered, reason: str, name: object | None = None
    ) -> NvmeError:
        """The error of a command whose function has failed, which is logged and counted."""
        self.registered.failures[registered] += 1
        text = f"{name or registered}: {reason}"
        log.error("%s", text)
        return NvmeError(Status.INTERNAL_ERROR, text, dnr=False)


@dataclass(eq=False, repr=False)
class _ObservedCommands(Commands):
    """The commands of a drive with extensions that have functions which are called after some."""

    extended: Extended = field(kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.observes_io = any(not admin for admin, _ in self.extended.registered.completed)

    def _complete(
        self, command: Command, status: int = 0, dnr: bool = False, result: int = 0
    ) -> None:
        super()._complete(command, status, dnr, result)
        entry, qid = command.entry, command.queue.qid
        hooks = self.extended.registered.completed.get((not qid, entry.opcode), [])
        for hook in list(hooks):
            given = extensions.Command(*entry)
            given.queue = qid
            took = (self.controller.deadlines.clock.now() - command.fetched) / 1000
            drive = self.extended.drives[self.controller.identifier]
            drive.changed()
            try:
                limited(extension_limits.STEP_LIMIT, hook.function, drive, given, took)
            except BaseException as error:  # noqa: BLE001 - it is a user's code
                reason = why(error, *hook.place)
                log.error("%s is not called again: %s", hook.name, reason)
                hooks.remove(hook)


def _step(
    generator: Generator[Any, Any, Any], value: object, error: NvmeError | None
) -> tuple[bool, Any]:
    """Continue a generator. True with its result where it ends, False with what it yields."""
    try:
        return False, generator.send(value) if error is None else generator.throw(error)
    except StopIteration as end:
        return True, end.value


def _access(command: RegisteredCommand) -> Access:
    """A command's access to its namespace, as far as its declaration says."""
    if not command.namespace:
        return Access.OTHER
    return Access.WRITE if command.writes else Access.READ


class _Whole(Word):
    """The dword of a feature, which is one number."""

    value = bits(0, 31)


def _key(table: Mapping[int, object], number: int) -> int:
    """The key of a table that equals the number, and has a name."""
    return next(key for key in table if key == number)


def _conflict(registered: Registered, what: str, builtin: object) -> ExtensionError:
    name = getattr(builtin, "name", str(builtin)).replace("_", " ").title()
    return ExtensionError(f"{registered} and Potash's {name} both have {what}; choose another")
