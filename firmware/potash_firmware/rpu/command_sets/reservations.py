"""Reservation Register, Acquire, Release and Report, of namespaces whose contents are durable.

A change that persists through power loss is on stable storage when its command completes.

Source: NVM Express Base Specification 2.0, sections 7.2 to 7.5 and 8.19.
"""

from collections.abc import Generator, Sequence
from enum import IntEnum
from typing import Any, TypeVar

from nvme_spec.reservations import (
    AcquireAction,
    AcquireKeys,
    NotificationType,
    PersistenceChange,
    RegisterAction,
    RegisterKeys,
    ReleaseAction,
    ReleaseKey,
    ReservationAcquire,
    ReservationRegister,
    ReservationRelease,
    ReservationReport,
    ReservationType,
)
from nvme_spec.status import NvmeError, Status
from potash_device.media.errors import MediaError
from potash_firmware.rpu.command import Command, Result, Steps
from potash_firmware.rpu.controller import Controller
from potash_firmware.rpu.reservations import Host, Notices, Reservation
from potash_firmware.rpu.scheduler import Wait, never

Value = TypeVar("Value", bound=IntEnum)


def register(controller: Controller, command: Command) -> Steps:
    """Register the host, change its key, or unregister it."""
    fields = ReservationRegister.decode(command.entry.cdws)
    action = _value(RegisterAction, fields.rrega)
    persistence = _value(PersistenceChange, fields.cptpl)
    keys = RegisterKeys.decode(controller.transfer.receive(command, RegisterKeys.RECORD.size))
    host, reservation = _found(controller, command)
    number = controller.identifier
    has_room = host in reservation.registrants or controller.reservations.every.has_room(number)
    if not has_room:
        raise NvmeError(Status.INTERNAL_ERROR, "there is no room for another registrant")
    lasts = reservation.persists
    notices = reservation.register(
        host, action, keys.crkey, keys.nrkey, ignores_key=fields.iekey, controller=number
    )
    if persistence is not PersistenceChange.NONE:
        reservation.persists = persistence is PersistenceChange.SET
    yield from _settle(controller, command.entry.nsid, notices, lasted=lasts)
    return None


def acquire(controller: Controller, command: Command) -> Steps:
    """Hold a reservation, or take over the reservation or registration of others, whose commands
    on the namespace may be aborted."""
    fields = ReservationAcquire.decode(command.entry.cdws)
    _require_checked_key(fields.iekey)
    action, rtype = _value(AcquireAction, fields.racqa), _value(ReservationType, fields.rtype)
    keys = AcquireKeys.decode(controller.transfer.receive(command, AcquireKeys.RECORD.size))
    host, reservation = _found(controller, command)
    if action is AcquireAction.ACQUIRE:
        notices = reservation.acquire(host, keys.crkey, rtype)
    else:
        notices = reservation.preempt(host, keys.crkey, keys.prkey, rtype)
    nsid = command.entry.nsid
    yield from _settle(controller, nsid, notices, lasted=reservation.persists)
    if action is AcquireAction.PREEMPT_AND_ABORT:
        preempted = {
            other
            for other, what in notices.items()
            if what is NotificationType.REGISTRATION_PREEMPTED
        }
        yield from _abort(controller, nsid, preempted)
    return None


def release(controller: Controller, command: Command) -> Steps:
    """Release the reservation, or clear the namespace of it and of all registrants."""
    fields = ReservationRelease.decode(command.entry.cdws)
    _require_checked_key(fields.iekey)
    action = _value(ReleaseAction, fields.rrela)
    (crkey,) = ReleaseKey.decode(controller.transfer.receive(command, ReleaseKey.RECORD.size))
    host, reservation = _found(controller, command)
    if action is ReleaseAction.CLEAR:
        notices = reservation.clear(host, crkey)
    else:
        notices = reservation.release(host, crkey, fields.rtype)
    yield from _settle(controller, command.entry.nsid, notices, lasted=reservation.persists)
    return None


def report(controller: Controller, command: Command) -> Result:
    """Give the registrants, and the reservation that is held."""
    fields = ReservationReport.decode(command.entry.cdws)
    data = controller.reservations.report(command.entry.nsid, extended=fields.eds)
    controller.transfer.send(command, data[: fields.length])
    return None


def set_persistence(controller: Controller, nsids: Sequence[int], *, persists: bool) -> Steps:
    """Set the Persist Through Power Loss state of namespaces, by the feature for that."""
    every = controller.reservations.every
    changed = [nsid for nsid in nsids if every[nsid].persists != persists]
    for nsid in changed:
        every[nsid].persists = persists
    if changed:
        yield from _store(controller)
    return None


def _settle(
    controller: Controller, nsid: int, notices: Notices, *, lasted: bool
) -> Generator[Any, Any, None]:
    """Have everybody act by a namespace's changed reservation, and store it if it persists, or did
    before (`lasted`)."""
    every = controller.reservations.every
    every.changed(nsid, notices)
    if lasted or every[nsid].persists:
        yield from _store(controller)


def _store(controller: Controller) -> Generator[Any, Any, None]:
    """Have what persists on stable storage. Raises NvmeError."""
    controller.reservations.every.put()
    try:
        yield controller.media_work.submit(controller.board.storage.sidecar.save)
    except MediaError as error:
        # It is in force, and saved as soon as the sidecar can be written again.
        raise NvmeError(Status.INTERNAL_ERROR, str(error.strerror), dnr=False) from None


def _abort(controller: Controller, nsid: int, hosts: set[Host]) -> Generator[Any, Any, None]:
    """Abort the commands that hosts have on a namespace; those that cannot be aborted have ended
    when this does."""
    sides = [side for side in controller.reservations.every.hosts if side.host in hosts]
    commands = [
        (side.outstanding, task)
        for side in sides
        for task in side.outstanding.all
        if task.command.queue.qid and task.command.entry.nsid == nsid
    ]
    while True:
        begun = {
            future
            for outstanding, task in commands
            for future in outstanding.end(task, Status.PREEMPT_ABORTED)
        }
        for side in sides:
            side.outstanding.answer()
        if not begun:
            return
        # What one of them has ended may begin something else, so this asks again.
        yield Wait(begun, never)


def _found(controller: Controller, command: Command) -> tuple[Host, Reservation]:
    side = controller.reservations
    return side.host, side.every[command.entry.nsid]


def _value(kind: type[Value], value: int) -> Value:
    """A field's value. Raises NvmeError for a reserved one."""
    try:
        return kind(value)
    except ValueError:
        raise NvmeError(Status.INVALID_FIELD, f"there is no {kind.__name__} {value}") from None


def _require_checked_key(ignored: bool) -> None:
    """Raise NvmeError for a command that ignores the host's key, which only Register can."""
    if ignored:
        raise NvmeError(Status.INVALID_FIELD, "IEKEY is of Reservation Register alone")
