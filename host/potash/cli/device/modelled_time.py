"""The modelled drive of a device: what it begins as, and what is kept of it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from potash.cli.device.extending import warn_of_policies
from potash.cli.progress import ticking
from potash.files import replacing
from potash.sdk.errors import PotashError, restated
from potash.sections import MODELLED, ON_FLASH, STEPPED, TimeSection
from potash_device.cores import DEFAULT
from potash_device.flash.rates import PAGE, ProfileError
from potash_device.media.drive import Drive as MediaDrive
from potash_device.media.shapes import stored_of
from potash_firmware.apu.process import Forked, fork
from potash_firmware.rpu.settings import ComputeSettings

log = logging.getLogger(__name__)

PREPARING = "preparing the model of the drive"

if TYPE_CHECKING:
    from potash.vm.standstill import Standstill
    from potash.vm.stoppable import Clock
    from potash_firmware.extension_registry import Extensions
    from potash_firmware.ftl.interface import Ftl, Held
    from potash_firmware.rpu.placement import PlacementSettings
    from potash_firmware.rpu.settings import RpuSettings
    from potash_firmware.rpu.timing.modelled import ModelledTime, TimeSettings


def standing(section: TimeSection) -> Callable[[Clock], Standstill] | None:
    """A function from a clock to the object that stops the guests; None if nothing stops them.
    Raises PotashError for a socket that is no monitor, and for options that contradict each other.
    """
    if section.mode != MODELLED:
        return None
    if not section.monitor:
        if section.hold:
            raise PotashError("--hold needs --monitor, through which the guest is stopped")
        return None
    from potash.vm.qmp import require_monitor
    from potash.vm.standstill import Standstill

    if section.clock == STEPPED:
        raise PotashError("--monitor is for --clock host: no guest can have a stepped clock")
    monitors = [monitor.absolute() for monitor in section.monitor]
    for monitor in dict.fromkeys(monitors):
        require_monitor(monitor)
    return partial(Standstill, monitors, limit=section.still_limit, watched=section.hold)


def modelled(
    section: TimeSection,
    media: MediaDrive,
    placement: PlacementSettings | None = None,
    extensions: Extensions | None = None,
) -> TimeSettings | None:
    """The drive whose time a device with these media takes; None in mode `fast`.

    It has a stream for each reclaim unit handle of `placement`, and may have a translation layer of
    `extensions`.

    Raises PotashError for a drive that cannot be had.
    """
    if section.mode != MODELLED:
        return None
    from potash_firmware.extension_registry import Extensions
    from potash_firmware.ftl import named, saving
    from potash_firmware.ftl.interface import FtlError
    from potash_firmware.rpu.timing.modelled import TimeSettings

    held = None
    try:
        make = partial(_drive, section, media, placement, extensions or Extensions())
        drive = make()
        warn_of_policies(section.policies)
        if media.time_state is not None:
            drive, held = _kept(media.time_state, drive, make)
    except FtlError as error:
        raise PotashError(str(error)) from None
    except ProfileError as error:
        raise PotashError(f"--drive {section.drive}: {error}") from None
    except MemoryError:
        raise PotashError(
            f"--drive {section.drive}: this machine has not enough memory for the model of a "
            "drive of this size; make it smaller"
        ) from None
    with restated(FtlError):
        _prepare(drive)
    # A drive's state says nothing of its cores.
    cores = DEFAULT if Path(section.drive).suffix == ".npz" else named.cores(section.drive)
    stepped = section.clock == STEPPED
    return TimeSettings(
        drive,
        section.factor,
        cores,
        held,
        stepped,
        section.hold,
        section.kv_index == ON_FLASH,
        saving,
        section.bandwidth_shares,
    )


def preload() -> None:
    """Import the model and load its compiled code, so that processes forked from this one share
    both."""
    from potash_firmware.ftl import custom, named, saving  # noqa: F401
    from potash_firmware.ftl.compiled import is_compiled
    from potash_firmware.ftl.drive import Drive
    from potash_firmware.ftl.words import SMALLEST
    from potash_firmware.rpu.timing import modelled  # noqa: F401

    drive = Drive(SMALLEST)
    if not is_compiled():  # in a process that then gives back what a compiler takes
        Forked(fork(partial(_prepare, drive))).wait()
    drive.prepare()


def _prepare(drive: Ftl) -> None:
    with ticking(PREPARING):
        drive.prepare()


def require_cache(drive: Ftl) -> None:
    """Raises PotashError for a drive without a cache of its mapping."""
    from potash_firmware.ftl.interface import FtlError

    try:
        drive.resize_cache(drive.now, 0)
    except FtlError as error:
        raise PotashError(f"--hmb: {error}; choose a --drive with a mapping_cache") from None


def require_scheduler(section: TimeSection, settings: RpuSettings) -> None:
    """Raises PotashError where a drive has not the scheduler of its compute units, or no time that
    units could share out."""
    compute, extensions = settings.compute, settings.extensions
    if (compute.units, compute.scheduler) == (1, ComputeSettings.scheduler):
        return
    if section.mode != MODELLED:
        raise PotashError(
            "--compute-units and --scheduler are for modelled time; add --time modelled"
        )
    from potash_firmware.rpu.timing import schedulers

    registered = {} if extensions is None else extensions.schedulers
    with restated(schedulers.SchedulerError, "--scheduler"):
        schedulers.named(compute.scheduler, compute.units, registered)


def keep(timing: ModelledTime | None, media: MediaDrive) -> None:
    """Keep the state of the modelled drive beside the media, if there are both. Raises PotashError
    where it cannot be written."""
    if timing is None or media.time_state is None:
        return
    from potash_firmware.ftl.custom import CustomFtl
    from potash_firmware.ftl.interface import FtlError
    from potash_firmware.ftl.saving import save

    drive = timing.drive
    if isinstance(drive, CustomFtl) and drive.version is None:
        return
    try:
        with replacing(media.time_state) as file:
            save(drive, file, timing.held)
    except FtlError as error:
        log.error("the state of the modelled drive is not kept: %s", error)


def _kept(path: Path, new: Ftl, make: Callable[[], Ftl]) -> tuple[Ftl, Held | None]:
    """The drive in a file, and what namespaces have of it, or else an empty one, as `make` makes
    it, where the file holds none, or one of another geometry."""
    from potash_firmware.ftl.custom import CustomFtl
    from potash_firmware.ftl.drive import Drive
    from potash_firmware.ftl.interface import FtlError
    from potash_firmware.ftl.saving import load, load_held, restore_custom
    from potash_firmware.rpu.timing.zones import require_sound

    if isinstance(new, CustomFtl) and new.version is None:
        log.warning("the modelled drive is empty, as %s has no version of its state", new.name)
        return new, None
    if not path.exists():
        return new, None
    found = new
    try:
        with path.open("rb") as file:
            if isinstance(new, CustomFtl):
                restore_custom(new, file)
            else:
                assert isinstance(new, Drive)
                found = load(file, new.policies)
            file.seek(0)
            held = load_held(file)
        require_sound(found.profile, held)
    except (OSError, ValueError, FtlError) as error:
        if isinstance(error, FtlError) and not isinstance(new, CustomFtl):
            raise  # a policy fails
        log.warning("the modelled drive is empty, as %s cannot be used: %s", path, error)
        return (make() if isinstance(new, CustomFtl) else new), None
    if found.profile != new.profile:
        log.warning("the modelled drive is another one than in %s, and begins anew", path)
        return new, None
    log.info("the modelled drive goes on from %s", path)
    return found, held


def _drive(
    section: TimeSection,
    media: MediaDrive,
    placement: PlacementSettings | None,
    extensions: Extensions,
) -> Ftl:
    from potash import timing
    from potash_device.flash.scaling import TooSmallError, ZoneShape, equipped, scaled
    from potash_firmware.ftl import named

    groups = 1 if placement is None else placement.groups
    streams = 1 if placement is None else placement.handles * groups
    shapes = stored_of(media.shapes).values()
    zones = [
        ZoneShape(shape.zones, shape.zone_size, shape.zone_capacity)
        for shape in shapes
        if shape.zones
    ]
    records = sum(shape.size - shape.data_size for shape in shapes if shape.zones)
    overhead = sum(shape.flash_size - shape.size for shape in shapes if shape.has_values)
    pages = sum(-(-shape.flash_size // PAGE) for shape in shapes)
    capacity = max(pages * PAGE, media.capacity - records + overhead)
    if Path(section.drive).suffix != ".npz":
        profile = timing.profile(section.drive)
        if more := max(0, streams - profile.streams):
            # Each stream has a superblock open, which is no part of the spare, or one more for its
            # relocated pages.
            blocks = profile.blocks + more * (1 + profile.isolated)
            profile = replace(profile, streams=streams, blocks=blocks)
        if groups > 1:
            width = profile.total_dies // groups
            profile = replace(profile, reclaim_groups=groups, width=width)
        if section.zone_width:
            profile = replace(profile, width=section.zone_width)
        profile = equipped(profile, section.slc, section.over_provisioning, section.zone_slc)
        if section.zone_slc and not zones:
            log.warning("zone_slc changes nothing: the drive has no zones")
        try:
            profile = scaled(profile, capacity, zones)
        except TooSmallError as error:
            kept = media.time_state is not None and media.time_state.exists()
            if not kept and pages * PAGE == capacity:
                raise
            # A host has deleted the namespaces for which the drive was made.
            log.warning("%s, of which the model is now", error)
            profile = scaled(profile, error.least, zones)
        return named.ftl(section.ftl, profile, section.policies, extensions.ftls)
    if (section.slc, section.over_provisioning, section.zone_slc) != (None, None, None):
        raise ProfileError("it has its own SLC cache and spare flash")
    path = Path(section.drive)
    drive = timing.restored_with_ftl(path, section.ftl, section.policies, extensions.ftls)
    if drive.profile.reclaim_groups != groups:
        raise ProfileError(
            f"it has {drive.profile.reclaim_groups} reclaim groups, and --fdp asks for {groups}"
        )
    if drive.profile.streams < streams:
        raise ProfileError(
            f"it has {drive.profile.streams} streams, fewer than reclaim unit handles ({streams})"
        )
    if drive.profile.capacity < capacity:
        raise ProfileError(
            f"it has {drive.profile.capacity} bytes, and the namespaces have {capacity}"
        )
    return drive
