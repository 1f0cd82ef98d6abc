"""Set Features and Get Features; `features.table` lists the features.

Source: NVM Express Base Specification 2.0, section 5.15 and 5.27.
"""

from collections.abc import Callable, Generator
from typing import Any

from nvme_spec.commands import GetFeatures, SetFeatures
from nvme_spec.features import FeatureId, KeepAliveTimer, ReservationPersistence, Select
from nvme_spec.ocp import LATENCY_MONITOR_FEATURE
from nvme_spec.persistent_events import TimestampChanged
from nvme_spec.queues import BROADCAST_NSID
from nvme_spec.status import NvmeError, Status
from potash_device.media.errors import MediaError
from potash_firmware.rpu.admin import host_memory, placement
from potash_firmware.rpu.command import Command, Result, Steps
from potash_firmware.rpu.command_sets import reservations
from potash_firmware.rpu.controller import Controller
from potash_firmware.rpu.features.table import Feature
from potash_firmware.rpu.features.values import MILLISECOND
from potash_firmware.rpu.namespaces.flushing import flushing, require_not_formatting
from potash_firmware.rpu.scheduler import Wait, never


def set_features(controller: Controller, command: Command) -> Steps:
    """Store a feature's value; one that is saved is on stable storage when the command ends."""
    fields = SetFeatures.decode(command.entry.cdws)
    features = controller.features
    feature = _row(controller, fields.fid)
    if fields.save and not feature.saveable:
        raise NvmeError(
            Status.FEATURE_NOT_SAVEABLE, f"feature {fields.fid:#x} outlives no power cycle"
        )
    nsid = command.entry.nsid
    if not feature.namespace_specific and nsid not in (0, BROADCAST_NSID):
        controller.namespaces.active(nsid)
        raise NvmeError(
            Status.FEATURE_NOT_NAMESPACE_SPECIFIC, "the feature is the whole controller's"
        )
    if feature.placement:
        return (yield from placement.set_feature(controller, command))
    if fields.fid == FeatureId.HOST_MEMORY_BUFFER:
        return (yield from host_memory.set_feature(controller, command))
    nsids = _namespaces(controller, feature, nsid, all_allowed=True)
    if fields.fid == FeatureId.NAMESPACE_WRITE_PROTECTION:
        for chosen in nsids:  # a format that could not write would leave nothing that can be used
            require_not_formatting(controller.namespaces.stored[chosen])
    length = feature.taken(fields.value)
    data = bytes(controller.transfer.receive(command, length)) if length else b""
    if fields.fid == FeatureId.RESERVATION_PERSISTENCE:
        persists = bool(ReservationPersistence(fields.value).ptpl)
        return (yield from reservations.set_persistence(controller, nsids, persists=persists))
    if fields.fid == FeatureId.HOST_IDENTIFIER:
        controller.reservations.require_identifier(data)
    timestamp = controller.features.timestamp_value()
    result = features.set(fields.fid, fields.value, nsids, data, save=fields.save)
    if fields.fid == FeatureId.TIMESTAMP:
        controller.reports.persistent_events.add(
            TimestampChanged(previous=timestamp, since_reset=features.milliseconds_since_reset)
        )
    _AFTER.get(fields.fid, _nothing)(controller)
    if not (fields.save or feature.persistent):
        return result
    controller.features.put_saved()
    save = controller.board.storage.sidecar.save
    if fields.fid == FeatureId.NAMESPACE_WRITE_PROTECTION:
        save = yield from _flushed_before(controller, nsids, save)
    try:
        yield controller.media_work.submit(save)
    except MediaError as error:
        # It is in force, and saved as soon as the sidecar can be written again.
        raise NvmeError(Status.INTERNAL_ERROR, str(error.strerror), dnr=False) from None
    return result


def _flushed_before(
    controller: Controller, nsids: list[int], save: Callable[[], None]
) -> Generator[Any, Any, Callable[[], None]]:
    """Wait for writes of namespaces that take no more; `save`, after a flush of them."""
    protected = [
        ns
        for nsid, ns in controller.namespaces.stored.items()
        if nsid in nsids and ns.media.protected
    ]
    yield Wait(
        {
            future
            for ns in protected
            for future in ns.in_flight.in_the_way(0, ns.size, writes=False)
        },
        never,
    )
    flush = flushing(protected)

    def flush_and_save() -> None:
        for _, error in flush():
            if error is not None:
                raise error
        save()

    return flush_and_save


def get_features(controller: Controller, command: Command) -> Result:
    """Give a feature's value in dword 0, and its data structure if it has one."""
    fields = GetFeatures.decode(command.entry.cdws)
    feature = _row(controller, fields.fid)
    if fields.select not in list(Select):
        raise NvmeError(Status.INVALID_FIELD, f"select {fields.select} is reserved")
    if command.entry.nsid == BROADCAST_NSID and fields.fid in _OF_RESERVATIONS:
        raise NvmeError(Status.INVALID_FIELD, "the feature has a value for each namespace")
    (nsid,) = _namespaces(controller, feature, command.entry.nsid, all_allowed=False)
    if fields.select == Select.SUPPORTED_CAPABILITIES:
        return feature.capabilities
    if feature.placement:
        return placement.get_feature(controller, command)
    if fields.fid == FeatureId.RESERVATION_PERSISTENCE and fields.select != Select.DEFAULT:
        return int(controller.reservations.every[nsid].persists)
    value = controller.features.read(fields.select, fields.fid, fields.value, nsid)
    if value.data:
        controller.transfer.send(command, value.data)
    return value.dword


def _row(controller: Controller, fid: int) -> Feature:
    """Raises NvmeError where there is no such feature."""
    feature = controller.features.row(fid)
    absent = feature.namespace_specific and not feature.command_sets & controller.namespaces.enabled
    if absent or (feature.placement and controller.placement is None):
        raise NvmeError(Status.INVALID_FIELD, f"there is no feature {fid:#x}")
    return feature


def _namespaces(
    controller: Controller, feature: Feature, nsid: int, *, all_allowed: bool
) -> list[int]:
    """The namespaces whose value is meant; [0] for a feature of the whole controller."""
    if not feature.namespace_specific:
        return [0]
    if nsid == BROADCAST_NSID and all_allowed:
        attached = controller.namespaces.attached
        return [nsid for nsid, ns in attached.items() if ns.csi in feature.command_sets]
    namespace = controller.namespaces.active(nsid)
    if namespace.csi not in feature.command_sets:
        raise NvmeError(
            Status.INVALID_NAMESPACE,
            f"namespace {nsid} is of command set {namespace.csi.name}, which has no such feature",
        )
    return [nsid]


_OF_RESERVATIONS = (FeatureId.RESERVATION_NOTIFICATION_MASK, FeatureId.RESERVATION_PERSISTENCE)


def _nothing(controller: Controller) -> None:
    """The value is read when it is needed."""


def _keep_alive(controller: Controller) -> None:
    kato = KeepAliveTimer(controller.features.get(FeatureId.KEEP_ALIVE_TIMER)).kato
    controller.keep_alive.configure(kato * MILLISECOND)


def _protect(controller: Controller) -> None:
    reports = controller.subsystem.reports
    for nsid in controller.namespaces.inventory.protect():
        reports.namespace_changed(nsid)
    reports.zones_changed()


def _configure_events(controller: Controller) -> None:
    controller.alerts.configured()
    controller.reports.zones_changed()


def _power(controller: Controller) -> None:
    if controller.power is not None:
        controller.power.configure()


def _monitor(controller: Controller) -> None:
    if controller.ocp is not None:  # an extension's feature may have the identifier
        controller.ocp.configure()


_AFTER: dict[int, Callable[[Controller], None]] = {
    FeatureId.TEMPERATURE_THRESHOLD: lambda controller: controller.alerts.health(),
    FeatureId.ASYNCHRONOUS_EVENT_CONFIGURATION: _configure_events,
    FeatureId.HOST_IDENTIFIER: lambda controller: controller.reservations.update(),
    FeatureId.IO_COMMAND_SET_PROFILE: lambda controller: controller.select_command_sets(),
    FeatureId.KEEP_ALIVE_TIMER: _keep_alive,
    FeatureId.HOST_CONTROLLED_THERMAL_MANAGEMENT: lambda controller: controller.thermal.update(),
    FeatureId.NAMESPACE_WRITE_PROTECTION: _protect,
    FeatureId.POWER_MANAGEMENT: _power,
    FeatureId.AUTONOMOUS_POWER_STATE_TRANSITION: _power,
    LATENCY_MONITOR_FEATURE: _monitor,
}
"""Apply the effects of a new value."""
