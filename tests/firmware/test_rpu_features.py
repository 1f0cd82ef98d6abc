"""Features as a host gets and sets them; section 5.27.1 of NVMe Base 2.0 under each one's name."""

import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvme_spec.status import NvmeError, Status
from potash_device.media.file import FileMedia
from potash_device.media.shapes import NamespaceShape
from potash_device.media.sidecar import SIDECAR_SIZE, Sidecar
from potash_device.media.store import MemoryMedia
from potash_firmware.rpu.features.table import Limits
from potash_firmware.rpu.features.values import Features
from support.nvme_host import DATA, PAGE, Cqe, Host

IDENTIFY, SET_FEATURES, GET_FEATURES = 6, 9, 0xA
SAVE = 1 << 31
CURRENT, DEFAULT, SAVED, CAPABILITIES = range(4)
ALL = 0xFFFFFFFF

SUCCESS, INVALID_FIELD, SEQUENCE, INVALID_NAMESPACE = 0x000, 0x002, 0x00C, 0x00B
NOT_SAVEABLE, NOT_NAMESPACE_SPECIFIC, OVERLAPPING, LBA_RANGE = 0x10D, 0x10F, 0x114, 0x080


def two_namespaces(sidecar: MemoryMedia | FileMedia | None = None) -> Host:
    """256 blocks in namespace 1 and 2048 in 4; 2 and 3 are inactive."""
    media = {nsid: MemoryMedia.create(1 << 20) for nsid in (1, 4)}
    return Host(media, sidecar=sidecar, shapes={4: NamespaceShape(1 << 20, 512)})


@pytest.fixture
def host() -> Iterator[Host]:
    with two_namespaces() as host:
        host.enable()
        yield host


def get(host: Host, fid: int, select: int = CURRENT, value: int = 0, nsid: int = 0) -> Cqe:
    return host.command(host.admin, GET_FEATURES, nsid=nsid, cdws=(select << 8 | fid, value))


def put(host: Host, fid: int, value: int = 0, nsid: int = 0, data: bytes = b"") -> Cqe:
    if data:
        host.put(data)
    return host.command(host.admin, SET_FEATURES, nsid=nsid, cdws=(fid, value))


def value_of(host: Host, fid: int, select: int = CURRENT, value: int = 0, nsid: int = 0) -> int:
    completion = get(host, fid, select, value, nsid)
    assert completion.status == SUCCESS, hex(completion.status)
    return completion.dw0


PRESENT = {
    # Saveable is bit 0, namespace specific bit 1, changeable bit 2.
    0x01: 5, 0x02: 4, 0x03: 6, 0x04: 5, 0x05: 7, 0x06: 5, 0x07: 4, 0x08: 5, 0x09: 4, 0x0A: 5,
    0x0B: 5, 0x0E: 4, 0x0F: 4, 0x10: 5, 0x16: 4, 0x19: 4, 0x80: 4, 0x81: 4, 0x82: 6, 0x83: 6, 0x84: 6,
}  # fmt: skip


def test_every_identifier_is_there_with_its_capabilities_or_refused(host: Host) -> None:
    for fid in range(256):
        completion = get(host, fid, CAPABILITIES, nsid=1 if PRESENT.get(fid, 0) & 2 else 0)
        if fid in PRESENT:
            assert (completion.status, completion.dw0) == (SUCCESS, PRESENT[fid]), hex(fid)
        else:
            assert (completion.status, completion.dnr) == (INVALID_FIELD, True), hex(fid)
            assert put(host, fid).status == INVALID_FIELD


def test_what_is_not_saveable_is_not_saved(host: Host) -> None:
    for fid, capabilities in PRESENT.items():
        nsid = 1 if capabilities & 2 else 0
        completion = host.command(host.admin, SET_FEATURES, nsid=nsid, cdws=(SAVE | fid, 0))
        if capabilities & 1:
            assert completion.status == SUCCESS, hex(fid)
        else:
            assert (completion.status, completion.dnr) == (NOT_SAVEABLE, True), hex(fid)


@pytest.mark.parametrize("fid", [fid for fid, has in PRESENT.items() if not has & 2])
def test_a_controller_s_feature_is_set_for_no_namespace_or_all(host: Host, fid: int) -> None:
    for nsid, status in ((1, NOT_NAMESPACE_SPECIFIC), (3, INVALID_FIELD), (65, INVALID_NAMESPACE)):
        assert put(host, fid, nsid=nsid).status == status
    assert put(host, fid, nsid=ALL).status == put(host, fid).status


@pytest.mark.parametrize("fid", [0x03, 0x05])
def test_a_namespace_s_feature_wants_an_active_one(host: Host, fid: int) -> None:
    one_range = struct.pack("<16xQQ32x", 0, 256)
    for nsid, status in ((0, INVALID_NAMESPACE), (3, INVALID_FIELD), (65, INVALID_NAMESPACE)):
        assert get(host, fid, nsid=nsid).status == status
        assert put(host, fid, nsid=nsid, data=one_range).status == status
    assert get(host, fid, nsid=ALL).status == INVALID_NAMESPACE
    assert put(host, fid, nsid=ALL, data=one_range).status == SUCCESS


def test_bits_without_a_meaning_are_not_kept(host: Host) -> None:
    for fid, kept in ((0x01, 0xFFFFFF07), (0x06, 1), (0x08, 0xFFFF), (0x0A, 1), (0x80, 0xFF)):
        assert put(host, fid, 0xFFFFFFFF).status == SUCCESS
        assert value_of(host, fid) == kept


def test_the_default_is_not_what_was_set_nor_what_was_saved(host: Host) -> None:
    assert host.command(host.admin, SET_FEATURES, cdws=(SAVE | 6, 0)).status == SUCCESS
    assert put(host, 6, 1).status == SUCCESS
    found = [value_of(host, 6, select) for select in (CURRENT, DEFAULT, SAVED)]
    assert found == [1, 1, 0]
    host.disable()
    host.enable()
    assert value_of(host, 6) == 0


@pytest.mark.parametrize("select", [4, 5, 6, 7])
def test_other_selects_are_reserved(host: Host, select: int) -> None:
    for fid in PRESENT:
        assert get(host, fid, select, nsid=1).status == INVALID_FIELD


# 03h, LBA Range Type.


def lba_range(slba: int, nlb: int, kind: int = 0, attributes: int = 0, guid: int = 0) -> bytes:
    return struct.pack("<BB14xQQ16s16x", kind, attributes, slba, nlb, guid.to_bytes(16, "little"))


def test_a_namespace_is_one_range_at_first(host: Host) -> None:
    host.clear(DATA, PAGE)
    assert value_of(host, 3, nsid=4) == 0
    assert host.data(PAGE) == lba_range(0, 2048).ljust(PAGE, b"\0")


def test_ranges_are_kept_in_their_order_for_ever(host: Host, tmp_path: Path) -> None:
    path = tmp_path / "sidecar"
    wanted = lba_range(8, 8, kind=1, attributes=3, guid=0xABCD << 112) + lba_range(0, 8, kind=0x80)
    with two_namespaces(FileMedia.open(path, SIDECAR_SIZE)) as first:
        first.enable()
        assert put(first, 3, 1, nsid=1, data=wanted).status == SUCCESS
        first.clear(DATA, PAGE)
        assert value_of(first, 3, nsid=1) == 1
        assert first.data(PAGE) == wanted.ljust(PAGE, b"\0")
    with two_namespaces(FileMedia.open(path, SIDECAR_SIZE)) as second:
        second.enable()
        assert value_of(second, 3, nsid=1) == 1
        assert second.data(PAGE) == wanted.ljust(PAGE, b"\0")
        assert value_of(second, 3, nsid=4) == 0
        assert value_of(second, 3, DEFAULT, nsid=1) == 0


@pytest.mark.parametrize(
    ("ranges", "status"),
    [
        ([lba_range(0, 256)], SUCCESS),
        ([lba_range(0, 257)], LBA_RANGE),
        ([lba_range(1 << 63, 1 << 63)], LBA_RANGE),
        ([lba_range(0, 0)], INVALID_FIELD),
        ([lba_range(0, 1, kind=5)], INVALID_FIELD),
        ([lba_range(0, 1, kind=0x7F)], INVALID_FIELD),
        ([lba_range(0, 1, kind=0xFF)], SUCCESS),
        ([lba_range(4, 4), lba_range(0, 4)], SUCCESS),
        ([lba_range(4, 4), lba_range(0, 5)], OVERLAPPING),
        ([lba_range(n, 1) for n in range(64)], SUCCESS),
        ([lba_range(n, 1, guid=(1 << 128) - 1) for n in range(64)], SUCCESS),
    ],
)
def test_ranges_are_checked(host: Host, ranges: list[bytes], status: int) -> None:
    # A list of 64 is a page, and lies on one.
    assert put(host, 3, len(ranges) - 1, nsid=1, data=b"".join(ranges)).status == status


def test_a_range_that_one_of_all_namespaces_has_not_changes_none(host: Host) -> None:
    assert put(host, 3, 0, nsid=ALL, data=lba_range(300, 1)).status == LBA_RANGE
    host.clear(DATA, PAGE)
    assert value_of(host, 3, nsid=4) == 0
    assert host.data(64) == lba_range(0, 2048)


def test_ranges_that_the_sidecar_has_no_room_for_are_refused(host: Host) -> None:
    most = b"".join(lba_range(n, 1, kind=1, guid=(1 << 128) - 1 - n) for n in range(64))
    assert put(host, 3, 63, nsid=1, data=most).status == SUCCESS
    completion = put(host, 3, 63, nsid=4, data=most)
    assert (completion.status, completion.dnr) == (0x006, True)
    assert host.command(host.admin, SET_FEATURES, cdws=(SAVE | 6, 0)).status == SUCCESS


# 04h, Temperature Threshold, and 10h, Host Controlled Thermal Management.


def test_thresholds_are_over_and_under_of_the_composite_temperature(host: Host) -> None:
    over, under, all_sensors = 0, 1 << 20, 0xF << 16
    assert put(host, 4, over | 350).status == SUCCESS
    assert put(host, 4, under | all_sensors | 280).status == SUCCESS
    assert value_of(host, 4, value=over) == 350
    assert value_of(host, 4, value=under) == under | 280
    for wrong in (1 << 16, 8 << 16, 2 << 20, 3 << 20):
        assert put(host, 4, wrong | 300).status == INVALID_FIELD
        assert get(host, 4, value=wrong).status == INVALID_FIELD
    assert get(host, 4, value=all_sensors).status == INVALID_FIELD  # Reserved in a Get Features.


def smart(host: Host) -> bytes:
    assert host.command(host.admin, 2, nsid=ALL, cdws=(127 << 16 | 1 << 15 | 2,)).status == SUCCESS
    return host.data(512)


def test_a_temperature_beyond_its_threshold_is_a_critical_warning(host: Host) -> None:
    kelvin = int.from_bytes(smart(host)[1:3], "little")
    for value, warns in (
        (kelvin + 1, 0), (kelvin, 2), (kelvin - 9, 2), (400, 0),
        (1 << 20 | kelvin, 2), (1 << 20 | kelvin - 1, 0),
    ):  # fmt: skip
        assert put(host, 4, value).status == SUCCESS
        assert smart(host)[0] & 2 == warns, value


@pytest.mark.parametrize(
    ("tmt1", "tmt2", "status"),
    [(0, 0, SUCCESS), (300, 310, SUCCESS), (300, 0, SUCCESS), (0, 310, SUCCESS),
     (310, 300, INVALID_FIELD), (300, 300, INVALID_FIELD), (292, 0, INVALID_FIELD),
     (0, 354, INVALID_FIELD), (293, 353, SUCCESS), (0xFFFF, 0xFFFF, INVALID_FIELD)],
)  # fmt: skip
def test_thermal_management_takes_rising_thresholds(
    host: Host, tmt1: int, tmt2: int, status: int
) -> None:
    assert host.command(host.admin, IDENTIFY, cdws=(1,)).status == SUCCESS
    assert struct.unpack("<HH", host.data(4, DATA + 324)) == (293, 353)
    assert put(host, 0x10, tmt1 << 16 | tmt2).status == status
    assert value_of(host, 0x10) == (tmt1 << 16 | tmt2 if status == SUCCESS else 0)


def test_thermal_management_counts_transitions_and_seconds(host: Host) -> None:
    kelvin = int.from_bytes(smart(host)[1:3], "little")

    def counted() -> tuple[int, int, int, int]:
        transitions_1, transitions_2, seconds_1, seconds_2 = struct.unpack_from(
            "<4I", smart(host), 216
        )
        return transitions_1, transitions_2, seconds_1, seconds_2

    host.now += 100
    assert put(host, 0x10, kelvin << 16 | kelvin + 10).status == SUCCESS
    host.now += 5
    assert put(host, 0x10, kelvin - 10 << 16 | kelvin).status == SUCCESS
    host.now += 7
    assert counted() == (1, 1, 5, 7)
    assert put(host, 0x10, 0).status == SUCCESS
    host.now += 50
    assert counted() == (1, 1, 5, 7)


# 07h and 09h to 0Bh.


def test_queues_are_granted_before_any_is_made(host: Host) -> None:
    assert put(host, 7, 0 << 16 | 0).dw0 == 3 << 16 | 3
    assert put(host, 7, 99 << 16 | 99).dw0 == 3 << 16 | 3
    for wrong in (0xFFFF, 0xFFFF << 16):
        assert put(host, 7, wrong).status == INVALID_FIELD
    host.create_io_queue()
    assert put(host, 7, 0).status == SEQUENCE
    assert [value_of(host, 7, select) for select in (CURRENT, DEFAULT, SAVED)] == [0x30003] * 3


def test_each_vector_has_a_value(host: Host) -> None:
    assert put(host, 9, 1 << 16 | 2).status == SUCCESS
    assert [value_of(host, 9, value=vector) for vector in (1, 2)] == [1, 1 << 16 | 2]
    assert value_of(host, 9, DEFAULT, 2) == 2
    for select in (CURRENT, DEFAULT, SAVED):
        assert get(host, 9, select, 5).status == INVALID_FIELD


# 0Eh, Timestamp.


def timestamp(host: Host, select: int = CURRENT) -> tuple[int, int]:
    """Milliseconds, and the byte of Synch and Timestamp Origin."""
    host.memory.view[DATA : DATA + 8] = b"\xee" * 8
    assert get(host, 0x0E, select).status == SUCCESS
    data = host.data(8)
    assert data[7] == 0
    return int.from_bytes(data[:6], "little"), data[6]


def test_a_timestamp_goes_on_from_what_was_set_until_a_reset(host: Host) -> None:
    host.now += 1.5
    assert timestamp(host) == (1500, 0)
    year_2020 = 1577836800000
    assert put(host, 0x0E, data=struct.pack("<Q", year_2020)).status == SUCCESS
    host.now += 2.25
    assert timestamp(host) == (year_2020 + 2250, 1 << 1)
    assert timestamp(host, DEFAULT) == timestamp(host, SAVED) == (0, 0)
    host.disable()
    host.enable()
    host.now += 3
    assert timestamp(host) == (3000, 0)


def test_a_timestamp_has_48_bits(host: Host) -> None:
    assert put(host, 0x0E, data=b"\xff" * 8).status == SUCCESS
    host.now += 0.002
    assert timestamp(host) == (1, 1 << 1)


# 0Fh is in test_rpu_keep_alive.py. 16h, 19h, 80h, 81h.


def test_the_host_s_behavior_is_kept_until_a_reset(host: Host) -> None:
    wanted = bytes([1, 1, 0]).ljust(512, b"\0")
    assert put(host, 0x16, data=wanted).status == SUCCESS
    host.clear(DATA, PAGE)
    assert get(host, 0x16).status == SUCCESS
    assert host.data(512) == wanted
    for at in range(3):
        assert put(host, 0x16, data=bytes(at) + b"\2" + bytes(511 - at)).status == INVALID_FIELD
    host.disable()
    host.enable()
    assert get(host, 0x16).status == SUCCESS
    assert host.data(512) == bytes(512)


def test_the_one_combination_of_command_sets_is_0(host: Host) -> None:
    assert put(host, 0x19, 0).status == SUCCESS
    for index in (1, 0x1FF):
        completion = put(host, 0x19, index)
        assert (completion.status, completion.dnr) == (0x12B, True)
    assert value_of(host, 0x19) == 0


def test_the_progress_marker_outlives_resets_and_power_cycles(tmp_path: Path) -> None:
    path = tmp_path / "sidecar"
    with two_namespaces(FileMedia.open(path, SIDECAR_SIZE)) as host:
        host.enable()
        assert value_of(host, 0x80) == 0
        assert put(host, 0x80, 3).status == SUCCESS
        host.disable()
        host.enable()
        assert value_of(host, 0x80) == 3
    with two_namespaces(FileMedia.open(path, SIDECAR_SIZE)) as host:
        host.enable()
        assert (value_of(host, 0x80), value_of(host, 0x80, DEFAULT)) == (3, 0)


def test_what_is_persistent_is_on_stable_storage_when_its_command_ends(host: Host) -> None:
    host.place(host.admin, SET_FEATURES, 9, cdws=(0x80, 5))
    host.ring(host.admin)
    host.service()
    assert host.reap(host.admin) == []
    host.executor.run_all()
    host.service()
    assert [(one.cid, one.status) for one in host.reap(host.admin)] == [(9, SUCCESS)]


def test_a_host_identifier_has_64_or_128_bits(host: Host) -> None:
    assert put(host, 0x81, 0, data=b"12345678ABCDEFGH").status == SUCCESS
    host.clear(DATA, 32)
    assert get(host, 0x81).status == SUCCESS
    assert host.data(16) == b"12345678" + bytes(8)
    assert get(host, 0x81, value=1).status == SUCCESS
    assert host.data(16) == b"12345678" + bytes(8)
    assert put(host, 0x81, 1, data=b"12345678ABCDEFGH").status == SUCCESS
    host.clear(DATA, 32)
    assert get(host, 0x81, value=1).status == SUCCESS
    assert host.data(32) == b"12345678ABCDEFGH" + bytes(16)
    completion = get(host, 0x81)
    assert (completion.status, completion.dnr) == (0x018, True)
    host.disable()
    host.enable()
    assert get(host, 0x81, value=1).status == SUCCESS
    assert host.data(16) == bytes(16)


# Every question there is.

DATA_FEATURES = {0x03: PAGE, 0x0E: 8, 0x16: 512, 0x81: 16}


@pytest.mark.parametrize("fid", DATA_FEATURES)
def test_memory_that_is_not_there_is_refused_and_changes_nothing(host: Host, fid: int) -> None:
    nsid = 1 if fid == 3 else 0
    for opcode in (SET_FEATURES, GET_FEATURES):
        completion = host.command(host.admin, opcode, nsid=nsid, prp1=1 << 44, cdws=(fid, 1))
        assert completion.status == 0x004
    host.clear(DATA, PAGE)
    assert get(host, fid, CAPABILITIES, nsid=nsid).status == SUCCESS
    assert host.data(PAGE) == bytes(PAGE)


STATUSES = {int(status) for status in Status}
dwords = st.one_of(
    st.integers(0, 0xFFFFFFFF), st.sampled_from([0, 1, 2, 0xFFFF, 1 << 16, 1 << 20, ALL])
)
nsids = st.one_of(st.sampled_from([0, 1, 3, 4, 5, 0xFFFFFFFE, ALL]), dwords)
fids = st.one_of(st.sampled_from(sorted(PRESENT)), st.integers(0, 255))

Question = tuple[int, int, int, int]


@pytest.fixture(scope="module")
def asked() -> Iterator[Callable[[int, Question, bytes], Cqe]]:
    """One device that is asked everything, whatever was set before."""
    with two_namespaces() as host:
        host.enable()

        def ask(opcode: int, question: Question, data: bytes) -> Cqe:
            fid, upper, nsid, cdw11 = question
            host.put(data)
            if not host.ready:  # it was told to expect a sign of life
                host.disable()
                host.enable()
            return host.command(host.admin, opcode, nsid=nsid, cdws=(upper << 8 | fid, cdw11))

        yield ask


@given(fids, st.integers(0, 7), nsids, dwords)
def test_every_get_features_ends_with_a_status_of_the_standard(
    asked: Callable[[int, Question, bytes], Cqe], fid: int, select: int, nsid: int, cdw11: int
) -> None:
    completion = asked(GET_FEATURES, (fid, select, nsid, cdw11), b"")
    assert completion.status in STATUSES - {0x006}
    assert completion.dnr == bool(completion.status)


@given(fids, st.integers(0, 0xFFFFFF), nsids, dwords, st.binary(max_size=64))
def test_every_set_features_ends_with_a_status_of_the_standard_and_can_be_read(
    asked: Callable[[int, Question, bytes], Cqe],
    fid: int,
    upper: int,
    nsid: int,
    cdw11: int,
    data: bytes,
) -> None:
    completion = asked(SET_FEATURES, (fid, upper, nsid, cdw11), data.ljust(PAGE, b"\0"))
    # 006h with DNR is a sidecar that is full of ranges.
    assert completion.status in STATUSES
    assert completion.dnr == bool(completion.status)
    if completion.status == SUCCESS:
        where = 1 if nsid == ALL and PRESENT[fid] & 2 else nsid
        read = asked(
            GET_FEATURES, (fid, CURRENT, where, cdw11 & ~0xF0000 if fid == 4 else cdw11), b""
        )
        assert read.status == SUCCESS


# What the firmware asks for.


def features_of_one_namespace() -> Features:
    """Namespace 1 has 100 blocks and tells which are deallocated, namespace 2 does not."""
    limits = Limits(
        io_queue_pairs=1,
        vectors=2,
        io_queues_exist=lambda: False,
        blocks={1: 100, 2: 100}.__getitem__,
        knows_deallocated={1: True, 2: False}.__getitem__,
    )
    sidecar = Sidecar(MemoryMedia.create(SIDECAR_SIZE))
    return Features(limits, sidecar, clock=lambda: 0.0)


def test_errors_of_deallocated_blocks_are_each_namespace_s_own() -> None:
    features = features_of_one_namespace()
    dulbe = 1 << 16
    assert features.dulbe == set()
    assert features.set(0x05, dulbe | 7, (1,)) == 0
    assert features.dulbe == {1}
    with pytest.raises(NvmeError) as refusal:
        features.set(0x05, dulbe, (1, 2))
    assert refusal.value.status == INVALID_FIELD
    assert features.get(0x05, nsid=1) == dulbe | 7
    features.reset()
    assert features.dulbe == set()


def test_a_namespace_that_is_gone_leaves_no_values_to_the_next() -> None:
    features = features_of_one_namespace()
    assert features.set(0x05, 7, (1, 2), save=True) == 0
    assert features.set(0x03, 0, (1,), lba_range(0, 5)) == 0
    features.forget_namespace(1)
    assert (features.get(0x05, nsid=1), features.get(0x05, nsid=2)) == (0, 7)
    assert features.saved_values() == [[5, 0, 2, 7]]
    assert features.read(CURRENT, 0x03, 0, 1).data[:64] == lba_range(0, 100)


def test_a_cache_that_is_off_writes_through_until_a_reset() -> None:
    features = features_of_one_namespace()
    assert not features.write_through
    features.set(0x06, 0)
    assert features.write_through
    features.reset()
    assert not features.write_through
