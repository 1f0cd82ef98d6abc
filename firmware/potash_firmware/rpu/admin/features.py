"""Set Features and Get Features; what there is to set is in the table of `rpu.features`.

Source: NVM Express Base Specification 2.0, section 5.15 and 5.27.
"""

from concurrent.futures import Future

from nvme_spec.commands import GetFeatures, SetFeatures
from nvme_spec.features import FeatureCapabilities, Select
from nvme_spec.queues import BROADCAST_NSID
from nvme_spec.status import NvmeError, Status
from potash_device.media import MediaError
from potash_firmware.rpu.command import Command, Pending, Result
from potash_firmware.rpu.controller import Controller


def set_features(controller: Controller, command: Command) -> Result:
    """Store a feature's value; with SV (save) the command ends when it is on stable storage."""
    fields = SetFeatures.decode(command.entry.cdws)
    features = controller.features
    capabilities = features.capabilities(fields.fid)
    if fields.save and FeatureCapabilities.SAVEABLE not in capabilities:
        raise NvmeError(
            Status.FEATURE_NOT_SAVEABLE, detail=f"feature {fields.fid:#x} outlives no power cycle"
        )
    nsid = command.entry.nsid
    if FeatureCapabilities.NAMESPACE_SPECIFIC not in capabilities and nsid not in (
        0,
        BROADCAST_NSID,
    ):
        if nsid not in controller.namespaces:
            raise NvmeError(Status.INVALID_NAMESPACE, detail=f"there is no namespace {nsid:#x}")
        raise NvmeError(
            Status.FEATURE_NOT_NAMESPACE_SPECIFIC, detail="the feature is the whole controller's"
        )
    nsids = _namespaces(controller, capabilities, nsid, all_allowed=True)
    results = [features.set(fields.fid, fields.value, nsid, save=fields.save) for nsid in nsids]
    if not fields.save:
        return results[0]
    return Pending(
        controller.on_media(controller.keeper.save_features()),
        lambda future: _kept(future, results[0]),
    )


def _kept(future: "Future[None]", result: int) -> int:
    """The saved value is on stable storage, or not."""
    try:
        future.result()
    except MediaError as error:
        # It is in force, and kept as soon as the sidecar can be written again.
        raise NvmeError(Status.INTERNAL_ERROR, dnr=False, detail=str(error.strerror)) from None
    return result


def get_features(controller: Controller, command: Command) -> Result:
    """Give a feature's value in dword 0."""
    fields = GetFeatures.decode(command.entry.cdws)
    features = controller.features
    capabilities = features.capabilities(fields.fid)
    (nsid,) = _namespaces(controller, capabilities, command.entry.nsid, all_allowed=False)
    match fields.select:
        case Select.CURRENT:
            return features.get(fields.fid, fields.value, nsid)
        case Select.DEFAULT:
            return features.default(fields.fid, fields.value)
        case Select.SAVED:
            # What cannot be saved has its default saved (section 5.15.1).
            return features.saved(fields.fid, fields.value, nsid)
        case Select.SUPPORTED_CAPABILITIES:
            return capabilities
        case _:
            raise NvmeError(Status.INVALID_FIELD, detail=f"select {fields.select} is reserved")


def _namespaces(
    controller: Controller, capabilities: FeatureCapabilities, nsid: int, *, all_allowed: bool
) -> list[int]:
    """The namespaces whose value is meant; [0] for a feature of the whole controller."""
    if FeatureCapabilities.NAMESPACE_SPECIFIC not in capabilities:
        return [0]
    if nsid == BROADCAST_NSID and all_allowed:
        return list(controller.namespaces)
    if nsid not in controller.namespaces:
        raise NvmeError(Status.INVALID_NAMESPACE, detail=f"there is no namespace {nsid:#x}")
    return [nsid]
