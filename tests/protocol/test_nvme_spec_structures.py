"""Identify, log pages and features: offsets written by hand from the standard's figures."""

import struct

import pytest

from nvme_spec import logs, reservations
from nvme_spec.features import (
    AsyncEventConfiguration,
    FeatureId,
    HostBehavior,
    HostControlledThermalManagement,
    HostIdentifier,
    InterruptCoalescing,
    InterruptVectorConfiguration,
    KeepAliveTimer,
    LbaRange,
    LbaRangeType,
    NumberOfQueues,
    SoftwareProgressMarker,
    TemperatureThreshold,
    Timestamp,
)
from nvme_spec.identify import capabilities, lists, structures
from nvme_spec.identify.lists import NamespaceIdentificationDescriptor
from nvme_spec.identify.structures import (
    Cns,
    IdentifyController,
    IdentifyNamespace,
    LbaFormat,
    PowerStateDescriptor,
)
from nvme_spec.layout import Structure
from nvme_spec.logs import AsyncEvent, ErrorLogEntry, FirmwareSlotLog, LogPage, SmartLog

Offsets = dict[str, tuple[int, int]]

CONTROLLER: Offsets = {
    "vid": (0, 2),
    "ssvid": (2, 2),
    "sn": (4, 20),
    "mn": (24, 40),
    "fr": (64, 8),
    "rab": (72, 1),
    "ieee": (73, 3),
    "cmic": (76, 1),
    "mdts": (77, 1),
    "cntlid": (78, 2),
    "ver": (80, 4),
    "rtd3r": (84, 4),
    "rtd3e": (88, 4),
    "oaes": (92, 4),
    "ctratt": (96, 4),
    "cntrltype": (111, 1),
    "fguid": (112, 16),
    "oacs": (256, 2),
    "acl_z": (258, 1),
    "aerl_z": (259, 1),
    "frmw": (260, 1),
    "lpa": (261, 1),
    "elpe_z": (262, 1),
    "npss_z": (263, 1),
    "wctemp": (266, 2),
    "cctemp": (268, 2),
    "hmpre": (272, 4),
    "tnvmcap": (280, 16),
    "unvmcap": (296, 16),
    "rpmbs": (312, 4),
    "edstt": (316, 2),
    "fwug": (319, 1),
    "kas": (320, 2),
    "sanicap": (328, 4),
    "anagrpmax": (344, 4),
    "domain_identifier": (356, 2),
    "sqes": (512, 1),
    "cqes": (513, 1),
    "maxcmd": (514, 2),
    "nn": (516, 4),
    "oncs": (520, 2),
    "fuses": (522, 2),
    "fna": (524, 1),
    "vwc": (525, 1),
    "awun_z": (526, 2),
    "acwu_z": (532, 2),
    "copy_formats": (534, 2),
    "sgls": (536, 4),
    "mnan": (540, 4),
    "subnqn": (768, 256),
    "psd": (2048, 1024),
    "vs": (3072, 1024),
}
NAMESPACE: Offsets = {
    "nsze": (0, 8),
    "ncap": (8, 8),
    "nuse": (16, 8),
    "nsfeat": (24, 1),
    "nlbaf_z": (25, 1),
    "format_index": (26, 1),
    "mc": (27, 1),
    "dlfeat": (33, 1),
    "nawun_z": (34, 2),
    "noiob": (46, 2),
    "nvmcap": (48, 16),
    "npwg_z": (64, 2),
    "nows_z": (72, 2),
    "mssrl": (74, 2),
    "mcl": (76, 4),
    "msrc_z": (80, 1),
    "anagrpid": (92, 4),
    "nsattr": (99, 1),
    "endgid": (102, 2),
    "nguid": (104, 16),
    "eui64": (120, 8),
    "lbaf": (128, 256),
}
SMART: Offsets = {
    "critical_warning": (0, 1),
    "composite_temperature": (1, 2),
    "available_spare": (3, 1),
    "available_spare_threshold": (4, 1),
    "percentage_used": (5, 1),
    "data_units_read": (32, 16),
    "data_units_written": (48, 16),
    "host_read_commands": (64, 16),
    "host_write_commands": (80, 16),
    "controller_busy_time": (96, 16),
    "power_cycles": (112, 16),
    "power_on_hours": (128, 16),
    "unsafe_shutdowns": (144, 16),
    "media_errors": (160, 16),
    "error_log_entries": (176, 16),
    "warning_temperature_time": (192, 4),
    "critical_temperature_time": (196, 4),
    "temperature_sensors": (200, 16),
    "thermal_transitions_1": (216, 4),
    "thermal_time_2": (228, 4),
}
ERROR: Offsets = {
    "error_count": (0, 8),
    "sqid": (8, 2),
    "cid": (10, 2),
    "status": (12, 2),
    "parameter_error_location": (14, 2),
    "lba": (16, 8),
    "nsid": (24, 4),
    "vendor_log_page": (28, 1),
    "trtype": (29, 1),
    "command_specific": (32, 8),
    "transport_specific": (40, 2),
}
POWER_STATE: Offsets = {
    "mp": (0, 2),
    "mxps": (3, 1),
    "enlat": (4, 4),
    "exlat": (8, 4),
    "rrt": (12, 1),
    "rrl": (13, 1),
    "rwt": (14, 1),
    "rwl": (15, 1),
    "idlp": (16, 2),
    "ips": (18, 1),
    "actp": (20, 2),
    "aps": (22, 1),
}
SIZES = {
    IdentifyController: 4096,
    IdentifyNamespace: 4096,
    structures.IndependentNamespace: 4096,
    structures.NvmCommandSetController: 4096,
    structures.NvmCommandSetNamespace: 4096,
    structures.CommandSetCombinations: 4096,
    PowerStateDescriptor: 32,
    LbaFormat: 4,
    ErrorLogEntry: 64,
    SmartLog: 512,
    FirmwareSlotLog: 512,
    logs.CommandEffectsLog: 4096,
    logs.DeviceSelfTestLog: 564,
    logs.SanitizeStatusLog: 512,
    HostBehavior: 512,
    LbaRange: 64,
    Timestamp: 8,
}


@pytest.mark.parametrize("kind", SIZES, ids=lambda kind: kind.__name__)
def test_a_structure_has_the_size_of_its_figure(kind: type[Structure]) -> None:
    assert len(bytes(kind())) == SIZES[kind]


@pytest.mark.parametrize(
    ("kind", "offsets"),
    [
        (IdentifyController, CONTROLLER),
        (IdentifyNamespace, NAMESPACE),
        (SmartLog, SMART),
        (ErrorLogEntry, ERROR),
        (PowerStateDescriptor, POWER_STATE),
    ],
    ids=lambda item: item.__name__ if isinstance(item, type) else "",
)
def test_a_field_is_where_its_figure_puts_it(kind: type[Structure], offsets: Offsets) -> None:
    found = {name: (kind.FIELDS[name].offset, kind.FIELDS[name].size) for name in offsets}
    assert found == offsets


def test_identify_controller_is_little_endian_and_padded() -> None:
    data = bytes(
        IdentifyController(
            vid=0x1B96,
            sn="123",
            oacs=capabilities.Oacs.DOORBELL_BUFFER_CONFIG | capabilities.Oacs.FIRMWARE,
            sqes=capabilities.entry_sizes(6, 6),
            cqes=capabilities.entry_sizes(4, 4),
            nn=1,
            subnqn="nqn.2024-01.org.example:drive",
            psd=(PowerStateDescriptor(mp=2500),),
        )
    )
    assert data[0:2] == b"\x96\x1b"
    assert data[4:24] == b"123" + b" " * 17
    assert data[256:258] == b"\x04\x01"
    assert data[512:514] == b"\x66\x44"
    assert data[768:800] == b"nqn.2024-01.org.example:drive\0\0\0"
    assert data[2048:2050] == b"\xc4\x09"


def test_a_namespaces_block_size_comes_from_its_current_format() -> None:
    formats = (LbaFormat(lbads=9), LbaFormat(lbads=12))
    namespace = IdentifyNamespace(format_index=1, lbaf=formats)
    data = bytes(namespace)
    assert data[26] == 1
    assert data[128:136] == b"\0\0\x09\0\0\0\x0c\0"
    assert namespace.block_size == 4096
    assert IdentifyNamespace(lbaf=formats).block_size == 512
    upper = bytearray(4096)
    upper[26] = 0x21  # bits 6:5 are the upper bits of the index: format 17
    upper[128 + 4 * 17 + 2] = 10
    assert IdentifyNamespace(upper).block_size == 1024


def test_capability_bits_are_the_standards() -> None:
    assert (capabilities.Oacs.FORMAT_NVM, capabilities.Oacs.DOORBELL_BUFFER_CONFIG) == (0x2, 0x100)
    assert (capabilities.Oncs.DATASET_MANAGEMENT, capabilities.Oncs.WRITE_ZEROES) == (0x4, 0x8)
    assert (capabilities.Oncs.COMPARE, capabilities.Oncs.VERIFY, capabilities.Oncs.COPY) == (
        1,
        0x80,
        0x100,
    )
    assert (capabilities.Lpa.SUPPORTED_LOG_PAGES, capabilities.Lpa.EXTENDED_DATA) == (0x20, 0x4)
    assert (capabilities.Vwc.PRESENT, capabilities.Vwc.FLUSH_BROADCAST_SUPPORTED) == (1, 6)
    assert (capabilities.Oaes.NAMESPACE_ATTRIBUTES, capabilities.Oaes.FIRMWARE_ACTIVATION) == (
        256,
        512,
    )
    assert capabilities.Sgls.OFFSET == 1 << 20
    assert (capabilities.Nvmsr.STORAGE_DEVICE, capabilities.Hctma.SUPPORTED) == (1, 1)
    assert (capabilities.KEEP_ALIVE_UNIT, capabilities.THIS_CONTROLLER) == (100, 0xFFFF)


def test_the_first_tier_of_identify_structures_has_its_numbers() -> None:
    assert [int(cns) for cns in Cns][:9] == list(range(9))
    assert Cns(0x1C) is Cns.COMMAND_SETS


def test_a_namespace_identification_descriptor_list() -> None:
    uuid = bytes(range(16))
    descriptors = [
        NamespaceIdentificationDescriptor(3, uuid),
        NamespaceIdentificationDescriptor(4, b"\0"),
    ]
    data = b"".join(item.encode() for item in descriptors)
    assert data == b"\x03\x10\0\0" + uuid + b"\x04\x01\0\0\0"
    padded = data.ljust(4096, b"\0")
    assert list(NamespaceIdentificationDescriptor.decode_list(padded)) == descriptors
    with pytest.raises(ValueError, match="announced"):
        list(NamespaceIdentificationDescriptor.decode_list(data[:10]))


def test_namespace_and_controller_lists() -> None:
    assert lists.encode_namespace_list({7, 1}) == struct.pack("<II4088x", 1, 7)
    assert lists.decode_namespace_list(struct.pack("<II4088x", 1, 7)) == [1, 7]
    assert len(lists.encode_namespace_list(range(1, 2000))) == 4096
    assert lists.encode_controller_list([1]) == struct.pack("<HH4092x", 1, 1)


def test_an_error_log_entry_holds_a_status() -> None:
    entry = ErrorLogEntry(error_count=1, sqid=2, cid=3, status=0x10A, dnr=1, nsid=4)
    data = bytes(entry)
    assert data[0:12] == struct.pack("<QHH", 1, 2, 3)
    assert data[12:14] == struct.pack("<H", 1 << 15 | 0x10A << 1)
    assert data[24:28] == struct.pack("<I", 4)


def test_a_firmware_slot_log_holds_a_revision_a_slot() -> None:
    data = bytes(FirmwareSlotLog(active_slot=1, next_slot=2, frs1="1.0", frs7="x"))
    assert data[0] == 0x21
    assert data[8:16] == b"1.0     "
    assert data[56:64] == b"x       "


def test_effects_logs() -> None:
    effects = logs.CommandEffects
    assert (effects.CSUPP, effects.LBCC, effects.NCC, effects.NIC, effects.CCC) == (1, 2, 4, 8, 16)
    acs = [0] * 256
    acs[6] = effects.CSUPP
    iocs = [0] * 256
    iocs[1] = effects.CSUPP | effects.LBCC
    data = bytes(logs.CommandEffectsLog(acs=acs, iocs=iocs))
    assert data[24:28] == b"\x01\0\0\0"
    assert data[1028:1032] == b"\x03\0\0\0"
    assert sum(data) == 4
    supported = logs.encode_dword_log({0: 1, 2: 1, 0xC0: 1})
    assert len(supported) == 1024
    assert [at for at in range(1024) if supported[at]] == [0, 8, 0x300]


def test_log_pages_have_their_numbers() -> None:
    assert [int(page) for page in LogPage][:9] == list(range(9))
    assert (LogPage.RESERVATION_NOTIFICATION, LogPage.SANITIZE_STATUS) == (0x80, 0x81)


def test_an_asynchronous_events_dword() -> None:
    assert AsyncEvent(type=7, info=1, log_page=0xC0).encode() == 0x00C0_0107
    assert AsyncEvent(0x0004_0002).log_page == logs.LogPage.CHANGED_NAMESPACE_LIST


def test_structures_of_reservations() -> None:
    header = bytes(reservations.ReservationStatus(gen=1, rtype=2, regctl=0x0403, ptpls=1))
    assert header == bytes([1, 0, 0, 0, 2, 3, 4, 0, 0, 1]) + bytes(14)
    extended = reservations.ExtendedReservationStatus(gen=1, rtype=2, regctl=0x0403, ptpls=1)
    assert bytes(extended) == header + bytes(40)
    listed = {"cntlid": 0x0201, "rcsts": 1, "rkey": 0x0807_0605_0403_0201}
    key, name = bytes(range(1, 9)), bytes(range(16))
    short = reservations.RegisteredController(hostid=name[:8], **listed)
    assert bytes(short) == bytes([1, 2, 1, 0, 0, 0, 0, 0]) + name[:8] + key
    long = reservations.RegisteredControllerExtended(hostid=name, **listed)
    assert bytes(long) == bytes([1, 2, 1, 0, 0, 0, 0, 0]) + key + name + bytes(32)
    page = reservations.ReservationNotificationLog(lpc=1, rnlpt=2, nalp=3, nsid=4)
    assert bytes(page) == struct.pack("<QBB2xI48x", 1, 2, 3, 4)


def test_commands_of_reservations() -> None:
    register = reservations.ReservationRegister(rrega=2, iekey=True, cptpl=3)
    assert register.encode()[0] == 2 | 1 << 3 | 3 << 30
    acquire = reservations.ReservationAcquire(racqa=2, rtype=6)
    assert acquire.encode()[0] == 2 | 6 << 8
    assert reservations.ReservationRelease(rrela=1, rtype=5).encode()[0] == 1 | 5 << 8
    report = reservations.ReservationReport(numd_z=15, eds=True)
    assert report.encode()[:2] == (15, 1) and report.length == 64
    assert reservations.AcquireKeys(1, 2).encode() == struct.pack("<QQ", 1, 2)


def test_features() -> None:
    assert [int(fid) for fid in FeatureId][:11] == list(range(1, 12))
    assert (FeatureId.TIMESTAMP, FeatureId.HOST_BEHAVIOR_SUPPORT) == (0x0E, 0x16)
    assert FeatureId(0x19) is FeatureId.IO_COMMAND_SET_PROFILE
    assert NumberOfQueues(nsq_z=3, ncq_z=5).encode() == 0x0005_0003
    assert InterruptCoalescing(thr_z=7, time=2).encode() == 0x0207
    assert InterruptVectorConfiguration(iv=3, cd=1).encode() == 0x0001_0003
    assert TemperatureThreshold(tmpth=343, tmpsel=1, thsel=1).encode() == 0x0011_0157
    assert AsyncEventConfiguration(0x0300).firmware_activation == 1
    assert bytes(Timestamp(timestamp=0x0605_0403_0201, origin=1)) == b"\1\2\3\4\5\6\2\0"
    assert HostControlledThermalManagement(tmt1=300, tmt2=310).encode() == 300 << 16 | 310
    assert HostIdentifier(exhid=1).encode() == 1
    assert KeepAliveTimer(kato=5000).encode() == 5000
    assert SoftwareProgressMarker(0xFF).pbslc == 0xFF
    assert LbaRangeType(num_z=63).encode() == 63
    assert [bytes(HostBehavior(**{name: 1}))[:3] for name in ("acre", "etdas", "lbafee")] == [
        b"\1\0\0", b"\0\1\0", b"\0\0\1"
    ]  # fmt: skip


def test_an_lba_range_lies_as_in_its_figure() -> None:
    """NVM Command Set 1.0, section 4.1.3 (LBA Range Type)."""
    data = bytes(LbaRange(type=2, attributes=3, slba=0x11, nlb=0x22, guid=b"\xaa" * 16))
    assert data == struct.pack("<BB14xQQ16s16x", 2, 3, 0x11, 0x22, b"\xaa" * 16)
