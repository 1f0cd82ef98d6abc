"""The features of data placement, whose values the endurance group and its handles have.

Source: NVM Express Base Specification 2.1, section 5.1.25.1.20 and 5.1.25.1.21.
"""

from concurrent.futures import Future

from nvme_spec.commands import SetFeatures
from nvme_spec.features import FeatureId
from nvme_spec.placement import EventType, FdpEventsFields, FdpFields
from nvme_spec.status import NvmeError, Status
from potash_firmware.rpu.command import Command, Pending, Result
from potash_firmware.rpu.controller import Controller
from potash_firmware.rpu.placement import GROUP

_ENABLED = 1
"""FDPE, with configuration index 0."""


def get_feature(controller: Controller, command: Command) -> Result:
    """Data placement, or the events of a placement handle. Raises NvmeError."""
    if SetFeatures.decode(command.entry.cdws).fid == FeatureId.FLEXIBLE_DATA_PLACEMENT:
        _require_group(command)
        return _ENABLED
    enabled, fields = _events_of(controller, command)
    listed = [bytes((one, one in enabled)) for one in EventType][: fields.noet]
    controller.transfer.send(command, b"".join(listed).ljust(2 * fields.noet, b"\0"))
    return len(EventType)


def set_feature(controller: Controller, command: Command) -> Result:
    """Enable events or disable them; data placement itself cannot be changed. Raises NvmeError."""
    if SetFeatures.decode(command.entry.cdws).fid == FeatureId.FLEXIBLE_DATA_PLACEMENT:
        _require_group(command)
        if FdpFields.decode(command.entry.cdws).value != _ENABLED:
            if controller.namespaces.blocks:
                raise NvmeError(Status.COMMAND_SEQUENCE_ERROR, "namespaces exist")
            raise NvmeError(Status.FEATURE_NOT_CHANGEABLE, "the drive places data from its start")
        return None
    enabled, fields = _events_of(controller, command)
    named = set(bytes(controller.transfer.receive(command, fields.noet))) if fields.noet else set()
    if unknown := named - set(EventType):
        raise NvmeError(Status.INVALID_FIELD, f"event {min(unknown):#x} is not supported")
    events = {EventType(one) for one in named}
    enabled |= events
    if not fields.enable:
        enabled -= events

    def kept(future: "Future[None]") -> None:
        future.result()

    return Pending(controller.media_work.submit(controller.persistence.record()), kept)


def _events_of(controller: Controller, command: Command) -> tuple[set[EventType], FdpEventsFields]:
    """The events of the placement handle that a command names. Raises NvmeError."""
    assert controller.placement is not None
    fields = FdpEventsFields.decode(command.entry.cdws)
    namespace = controller.namespaces.usable(command.entry.nsid)
    handle = controller.placement.handle(namespace.nsid, fields.phndl)
    if handle is None:
        raise NvmeError(Status.INVALID_FIELD, f"there is no placement handle {fields.phndl}")
    return controller.placement.enabled[handle], fields


def _require_group(command: Command) -> None:
    if FdpFields.decode(command.entry.cdws).endgid != GROUP:
        raise NvmeError(Status.INVALID_FIELD, "there is no such endurance group")
