"""The current values of features; `features.table` lists the features.

Values of namespaces, and of the drive, are the same for all controllers; each controller has its
own of the others. A value lasts until the next controller reset, which restores saved values; those
that several controllers share, until a reset of the NVM subsystem. Saved values and those that
always survive a power cycle are in the sidecar (`rpu.persistence`).

Source: NVM Express Base Specification 2.0, section 4.4 (feature values), 5.15 (Get Features) and
5.27 (Set Features).
"""

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from nvme_spec.features import (
    ErrorRecovery,
    FeatureId,
    HostBehavior,
    NumberOfQueues,
    PowerManagement,
    Select,
    Timestamp,
    TimestampOrigin,
    VolatileWriteCache,
)
from nvme_spec.status import NvmeError, Status
from potash_device.media.sidecar import Sidecar
from potash_device.saved import Number, Section
from potash_firmware.rpu.features.table import FEATURES, Feature, Limits, Value, refuse
from potash_firmware.rpu.part import Part
from potash_wire.records import U8, U32

log = logging.getLogger(__name__)

Key = tuple[int, int, int]
"""The key of a value: feature, selector (a part of the dword), namespace or 0."""

KEPT_LIMIT = 12 << 10
"""Bytes of the saved values of all controllers in the sidecar, which has other things to hold."""

MILLISECOND = 1e-3
_TIMESTAMP_LIMIT = 1 << 48


class SavedValue(NamedTuple):
    """A value that outlives a power cycle; `data` is in hexadecimal digits."""

    fid: U8
    selector: U32
    nsid: U32
    dword: U32
    data: str = ""


def section(controller: int = 0) -> Section[list[SavedValue]]:
    """The sidecar's section of the saved values of a controller; the first one's has those that all
    share, too."""
    return Section(f"features{controller or ''}", list[SavedValue])


class SavedFeatures(NamedTuple):
    """Current values: feature, what chooses, namespace, dword and data of each; and how many
    milliseconds ago the last reset was, and the timestamp was set."""

    values: tuple[tuple[U8, U32, U32, U32, bytes], ...]
    reset: Number
    timestamp: Number


class Features(Part):
    """The values of one controller's features; `clock` gives seconds.

    `drive` has the values that all controllers share; without it, these are such values.
    """

    def __init__(
        self,
        limits: Limits,
        sidecar: Sidecar,
        clock: Callable[[], float],
        drive: "Features | None" = None,
    ) -> None:
        self._limits = limits
        self._sidecar = sidecar
        self._clock = clock
        self._drive = self if drive is None else drive
        self._controllers: list[Features] = []
        """The values of each controller, of an object with values that they share."""
        self._number = len(self._drive._controllers)
        if drive is not None:
            drive._controllers.append(self)
        self._rows: Mapping[int, Feature] = FEATURES
        self._values: dict[Key, Value] = {}
        self._saved: dict[Key, Value] = {}
        self._reset_at = self._timestamp_since = 0.0
        self.version = 0
        """Changes with every value, for those that act on them."""
        self.own_coalescing: Callable[[], int] = lambda: 0
        """The value of Interrupt Coalescing while the host has set none."""
        self.power_state: Callable[[], int] | None = None
        """Gives the power state of a drive that has several."""
        self.write_through = False
        """The host has switched the volatile write cache off: every write is to be durable."""
        self.extended_formats = False
        """The host knows of extended LBA formats (LBAFEE)."""
        self.dulbe: frozenset[int] = frozenset()
        """Namespaces of which reading a deallocated or unwritten block is an error."""
        self.reset()

    @property
    def rows(self) -> Mapping[int, Feature]:
        """Every feature of the drive."""
        return self._drive._rows

    @rows.setter
    def rows(self, rows: Mapping[int, Feature]) -> None:
        self._drive._rows = rows

    def _owner(self, feature: Feature) -> "Features":
        """The object that has the values of a feature."""
        return self._drive if feature.shared else self

    def row(self, fid: int) -> Feature:
        """The feature's row. Raises NvmeError when there is none."""
        feature = self.rows.get(fid)
        if feature is None:
            raise refuse(f"there is no feature {fid:#x}")
        return feature

    def reset(self, *, next_host: bool = False) -> None:
        """Back to what was saved, or else to the defaults."""
        if self._drive is not self and len(self._drive._controllers) == 1:
            self._drive.reset()
        self._values = dict(self._saved)
        self._reset_at = self._timestamp_since = self._clock()
        self._changed()

    def save(self) -> SavedFeatures:
        """The current values, and how long ago the reset and the timestamp were."""
        now = self._clock()
        return SavedFeatures(
            tuple((*key, value.dword, value.data) for key, value in self.values.items()),
            round((now - self._reset_at) / MILLISECOND),
            round((now - self._timestamp_since) / MILLISECOND),
        )

    def load(self, saved: SavedFeatures) -> None:
        """Have the current values that were saved. Raises ValueError where one makes no sense."""
        try:
            values = dict(self._checked(*record) for record in saved.values)
        except NvmeError as error:
            raise ValueError(f"a feature has an impossible value: {error}") from None
        for owner in (self._drive, self):
            owner._values = {
                key: value
                for key, value in values.items()
                if self._owner(self.rows[key[0]]) is owner
            }
        now = self._clock()
        self._reset_at = now - saved.reset * MILLISECOND
        self._timestamp_since = now - saved.timestamp * MILLISECOND
        self._changed()

    @property
    def values(self) -> dict[Key, Value]:
        """Values that a host has set, and saved values."""
        return {**self._values, **self._drive._values}

    def forget_namespace(self, nsid: int) -> None:
        """A namespace is gone or a new one: its values are the defaults again, saved ones too."""
        for each in (self, *self._controllers):
            for values in (each._values, each._saved):
                for key in [key for key in values if key[2] == nsid]:
                    del values[key]
            each._changed()

    def _changed(self) -> None:
        self.version += 1
        for each in self._controllers:
            each.version += 1
        # Asked for every read and write.
        self.write_through = not VolatileWriteCache(self.get(FeatureId.VOLATILE_WRITE_CACHE)).wce
        if controllers := self._drive._controllers:
            self._drive.write_through = any(each.write_through for each in controllers)
        behavior = self._values.get((FeatureId.HOST_BEHAVIOR_SUPPORT, 0, 0), Value()).data
        self.extended_formats = bool(HostBehavior(behavior.ljust(HostBehavior.SIZE, b"\0")).lbafee)
        self.dulbe = frozenset(
            nsid
            for (fid, _, nsid), value in self._values.items()
            if fid == FeatureId.ERROR_RECOVERY and ErrorRecovery(value.dword).dulbe
        )

    # Saved values.

    def saved_values(self) -> list[list[int | str]]:
        """Values that outlive a power cycle, as the sidecar has them."""
        saved = dict(self._saved) if self._number else {**self._saved, **self._drive._saved}
        return [_record(key, value) for key, value in saved.items()]

    def put_saved(self) -> None:
        """Put the saved values into the sidecar, for its next write."""
        for each in self._drive._controllers or [self]:
            self._sidecar.put(section(each._number), each.saved_values())

    def restore(self, *, clean: bool | None = None) -> None:
        """Have the saved values, without those that make no sense."""
        for fid, _, nsid, dword, data in self._sidecar.get(section(self._number)) or ():
            self._restore_one(fid, dword, nsid, data)
        if not self._number:
            self._drive.reset()
        self.reset()

    def _restore_one(self, fid: int, dword: int, nsid: int, data: str) -> None:
        feature = self.rows.get(fid)
        if feature is None or not (feature.saveable or feature.persistent):
            return
        csi = self._limits.command_sets().get(nsid)
        if feature.namespace_specific and csi not in feature.command_sets:
            return  # A namespace that is gone.
        try:
            key, value = self._checked(fid, 0, nsid, dword, bytes.fromhex(data))
        except (NvmeError, ValueError) as error:
            log.warning("a saved value of feature %#x is left out: %s", fid, error)
        else:
            self._owner(feature)._saved[key] = value

    def _checked(self, fid: int, _: int, nsid: int, dword: int, data: bytes) -> tuple[Key, Value]:
        """The value of a record. Raises NvmeError and ValueError."""
        feature = self.row(fid)
        value = Value(dword & feature.mask, data[: feature.given(dword)])
        feature.check(value, nsid, self._limits)
        return _key(fid, feature, dword, nsid), value

    # Set Features.

    def set(
        self,
        fid: int,
        dword: int,
        nsids: Sequence[int] = (0,),
        data: bytes = b"",
        *,
        save: bool = False,
    ) -> int:
        """Store a value, of each namespace that is meant, and give dword 0 of the completion.

        Raises NvmeError, having stored nothing.
        """
        feature = self.row(fid)
        if save and not feature.saveable:
            raise NvmeError(
                Status.FEATURE_NOT_SAVEABLE, detail=f"feature {fid:#x} outlives no power cycle"
            )
        for nsid in nsids:
            feature.check(Value(dword & feature.mask, data), nsid, self._limits)
        if fid == FeatureId.NUMBER_OF_QUEUES:
            return self.granted_queues
        value = Value(feature.rounded(dword & feature.mask), data.rstrip(b"\0"))
        new = {_key(fid, feature, dword, nsid): value for nsid in nsids}
        owner = self._owner(feature)
        if save or feature.persistent:
            owner._keep(new)
        owner._values.update(new)
        if fid == FeatureId.TIMESTAMP:
            self._timestamp_since = self._clock()
        owner._changed()
        return 0

    def _keep(self, new: dict[Key, Value]) -> None:
        """Have values come back with every reset. Raises NvmeError when there is no room."""
        kept, drive = {**self._saved, **new}, self._drive
        others = [each._saved for each in (drive, *drive._controllers) if each is not self]
        records = [_record(*item) for saved in (kept, *others) for item in saved.items()]
        if len(json.dumps(records)) > KEPT_LIMIT:
            raise NvmeError(Status.INTERNAL_ERROR, detail="there is no room to save so many values")
        self._saved = kept

    # Get Features.

    def get(self, fid: int, dword: int = 0, nsid: int = 0) -> int:
        """The current value; `dword` is CDW11, which may choose one. Raises NvmeError."""
        return self.read(Select.CURRENT, fid, dword, nsid).dword

    def read(self, select: int, fid: int, dword: int = 0, nsid: int = 0) -> Value:
        """The current, default or saved value, its data as long as Get Features gives it.

        Raises NvmeError.
        """
        feature = self.row(fid)
        feature.check_selector(Value(dword), nsid, self._limits)
        value = self._read(select, fid, feature, dword, nsid)
        length = feature.given(dword)
        if fid == FeatureId.HOST_IDENTIFIER and len(value.data) > length:
            raise NvmeError(
                Status.HOST_IDENTIFIER_INCONSISTENT_FORMAT, detail="the identifier has 128 bits"
            )
        return Value(value.dword, value.data.ljust(length, b"\0"))

    def _read(self, select: int, fid: int, feature: Feature, dword: int, nsid: int) -> Value:
        if fid == FeatureId.NUMBER_OF_QUEUES:
            return Value(self.granted_queues)
        if fid == FeatureId.TIMESTAMP and select == Select.CURRENT:
            return Value(0, bytes(self.timestamp))
        if fid == FeatureId.POWER_MANAGEMENT and select == Select.CURRENT and self.power_state:
            chosen = PowerManagement(self.chosen(fid) or 0)
            return Value(PowerManagement(ps=self.power_state(), wh=chosen.wh).encode())
        # What cannot be saved has its default saved (section 5.15.1).
        owner = self._owner(feature)
        values = {Select.CURRENT: owner._values, Select.SAVED: owner._saved}.get(Select(select), {})
        value = values.get(_key(fid, feature, dword, nsid))
        if value is not None:
            return value
        if fid == FeatureId.INTERRUPT_COALESCING and select == Select.CURRENT:
            return Value(self.own_coalescing())
        return Value(feature.default(dword), feature.default_data(nsid, self._limits))

    # Values for the firmware.

    def chosen(self, fid: int) -> int | None:
        """The value that the host has set; None where it has set none."""
        value = self._values.get((fid, 0, 0))
        return None if value is None else value.dword

    @property
    def granted_queues(self) -> int:
        """Dword 0 of Number of Queues: all that there are, however many were asked for."""
        pairs = self._limits.io_queue_pairs
        return NumberOfQueues(nsq_z=pairs - 1, ncq_z=pairs - 1).encode()

    def timestamp_value(self) -> int:
        """The timestamp, as its structure is laid out in memory."""
        return int.from_bytes(bytes(self.timestamp), "little")

    @property
    def timestamp(self) -> Timestamp:
        """The host's clock, which has gone on since it was set; else the time since the reset. For
        the drive, it is that of the first controller."""
        if self._controllers:
            return self._controllers[0].timestamp
        passed = int((self._clock() - self._timestamp_since) / MILLISECOND)
        set_to = self._values.get((FeatureId.TIMESTAMP, 0, 0))
        if set_to is None:
            return Timestamp(timestamp=passed % _TIMESTAMP_LIMIT, origin=TimestampOrigin.CLEARED)
        start = Timestamp(set_to.data.ljust(Timestamp.SIZE, b"\0")).timestamp
        return Timestamp(
            timestamp=(start + passed) % _TIMESTAMP_LIMIT, origin=TimestampOrigin.SET_BY_HOST
        )

    @property
    def milliseconds_since_reset(self) -> int:
        """The time since the last controller reset."""
        return int((self._clock() - self._reset_at) / MILLISECOND)


def _record(key: Key, value: Value) -> list[int | str]:
    data: list[int | str] = [value.data.hex()] if value.data else []
    return [*key, value.dword, *data]


def _key(fid: int, feature: Feature, dword: int, nsid: int) -> Key:
    return (fid, dword & feature.selector, nsid if feature.namespace_specific else 0)
