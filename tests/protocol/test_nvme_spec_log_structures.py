"""Telemetry, persistent events, LBA status: offsets written by hand from the standard's figures."""

import pytest

from nvme_spec import persistent_events as events
from nvme_spec.layout import Structure
from nvme_spec.logs import (
    CommandByte,
    LbaRangeDescriptor,
    LbaStatusElement,
    LbaStatusLog,
    TelemetryHeader,
    parameter_error_location,
)

LAYOUTS: dict[type[Structure], tuple[int, dict[str, tuple[int, int]]]] = {
    TelemetryHeader: (
        512,
        {
            "lid": (0, 1),
            "ieee": (5, 3),
            "last_block_1": (8, 2),
            "last_block_2": (10, 2),
            "last_block_3": (12, 2),
            "last_block_4": (16, 4),
            "host_generation": (381, 1),
            "controller_available": (382, 1),
            "controller_generation": (383, 1),
            "reason": (384, 128),
        },
    ),
    LbaStatusLog: (16, {"lslplen": (0, 4), "nlslne": (4, 4), "estulb": (8, 4), "lsgc": (14, 2)}),
    LbaStatusElement: (16, {"neid": (0, 4), "nlrd": (4, 4), "ratype": (8, 1)}),
    LbaRangeDescriptor: (16, {"rslba": (0, 8), "rnlb_z": (8, 4)}),
    events.PersistentEventHeader: (
        512,
        {
            "lid": (0, 1),
            "tnev": (4, 4),
            "tll": (8, 8),
            "revision": (16, 1),
            "lhl": (18, 2),
            "timestamp": (20, 8),
            "power_on_hours": (28, 16),
            "power_cycles": (44, 8),
            "vid": (52, 2),
            "ssvid": (54, 2),
            "sn": (56, 20),
            "mn": (76, 40),
            "subnqn": (116, 256),
            "generation": (372, 2),
            "rci": (374, 4),
            "seb": (480, 32),
        },
    ),
    events.EventHeader: (
        24,
        {
            "type": (0, 1),
            "revision": (1, 1),
            "ehl": (2, 1),
            "pit": (3, 1),
            "cntlid": (4, 2),
            "timestamp": (6, 8),
            "pelpid": (14, 2),
            "vsil": (20, 2),
            "el": (22, 2),
        },
    ),
    events.FirmwareCommitted: (
        22,
        {
            "old_revision": (0, 8),
            "new_revision": (8, 8),
            "action": (16, 1),
            "slot": (17, 1),
            "sct": (18, 1),
            "sc": (19, 1),
            "vendor_result": (20, 2),
        },
    ),
    events.TimestampChanged: (16, {"previous": (0, 8), "since_reset": (8, 8)}),
    events.PowerOnOrReset: (
        44,
        {
            "revision": (0, 8),
            "cntlid": (8, 2),
            "firmware_activation": (10, 1),
            "operation_in_progress": (11, 1),
            "power_cycle": (24, 4),
            "power_on_milliseconds": (28, 8),
            "timestamp": (36, 8),
        },
    ),
    events.HardwareError: (4, {"code": (0, 2)}),
    events.NamespaceChanged: (
        48,
        {
            "cdw10": (0, 4),
            "nsze": (8, 8),
            "ncap": (24, 8),
            "flbas": (32, 1),
            "dps": (33, 1),
            "nmic": (34, 1),
            "anagrpid": (36, 4),
            "nvmsetid": (40, 2),
            "nsid": (44, 4),
        },
    ),
    events.FormatStarted: (12, {"nsid": (0, 4), "fna": (4, 1), "cdw10": (8, 4)}),
    events.FormatCompleted: (
        12,
        {
            "nsid": (0, 4),
            "smallest_fpi": (4, 1),
            "format_status": (5, 1),
            "completion_information": (6, 2),
            "status": (8, 2),
        },
    ),
    events.SanitizeStarted: (12, {"sanicap": (0, 4), "cdw10": (4, 4), "cdw11": (8, 4)}),
    events.SanitizeCompleted: (
        8,
        {"sprog": (0, 2), "sstat": (2, 2), "completion_information": (4, 2)},
    ),
    events.ThermalExcursion: (2, {"over_temperature": (0, 1), "threshold": (1, 1)}),
}


@pytest.mark.parametrize("kind", LAYOUTS, ids=lambda kind: kind.__name__)
def test_each_field_is_where_its_figure_has_it(kind: type[Structure]) -> None:
    size, offsets = LAYOUTS[kind]
    assert kind.SIZE == size
    assert {name: (one.offset, one.size) for name, one in kind.FIELDS.items()} == offsets


def test_headers_say_how_much_of_them_follows() -> None:
    """LHL is what is behind byte 19 of the log's header, EHL what is behind byte 2 of an
    event's."""
    assert events.LHL == 512 - 20
    assert events.EHL == 24 - 3


def test_every_event_knows_its_type() -> None:
    kinds = {kind.TYPE: kind.SIZE for kind in events.EventData.__subclasses__()}
    assert kinds == {
        1: 512, 2: 22, 3: 16, 4: 44, 5: 4, 6: 48, 7: 12, 8: 12, 9: 12, 0xA: 8, 0xC: 512, 0xD: 2
    }  # fmt: skip


def test_a_location_has_its_byte_below_its_bit() -> None:
    assert parameter_error_location(CommandByte.CDW10) == 40
    assert parameter_error_location(CommandByte.FLAGS, 6) == 0x601
