"""The Key Value Command Set: commands by literal numbers, and what is left of values.

Source: NVM Express Key Value Command Set Specification 1.0d, whose figures are named.
"""

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from potash_device.media.shapes import NamespaceShape
from potash_firmware.rpu.migration.saved import join, split
from potash_firmware.rpu.settings import RpuSettings
from support.key_value import (
    ABSENT,
    DELETE,
    EXIST,
    EXISTS,
    FLUSH,
    FULL,
    INVALID_FIELD,
    INVALID_FORMAT,
    INVALID_NAMESPACE,
    KEY_SIZE,
    KV,
    LIST,
    LONGEST,
    MUST_EXIST,
    MUST_NOT_EXIST,
    PAGE,
    RETRIEVE,
    SHAPES,
    SIZE,
    STORE,
    UNCOMPRESSED,
    VALUE_SIZE,
    WRITE_PROTECTED,
    command,
    keys,
    retrieve,
    store,
)
from support.memory import (
    GET_FEATURES,
    MIB,
    SET_FEATURES,
    asked,
    identify,
    log_page,
    nsids,
    powered,
)
from support.migration import load, moved, save
from support.new_process import new_process
from support.nvme_host import DATA, Cqe, Host


@pytest.fixture
def host() -> Iterator[Host]:
    with powered(None, *SHAPES) as found:
        yield found


def test_the_namespace_is_identified(host: Host) -> None:
    assert nsids(host, 0x02) == [1, KV]
    assert nsids(host, 0x07, 1) == [KV]
    assert struct.unpack_from("<QQQ", identify(host, 0x1C)) == (0b11, 0b1, 0)
    assert identify(host, 0x03, KV)[20:28] == bytes([4, 1, 0, 0, 1, 0, 0, 0])
    store(host, b"key", b"value")
    page = identify(host, 0x05, KV, 1)
    assert struct.unpack_from("<QQQ", page) == (SIZE, 0, 8)
    assert page[24:29] == bytes([0, 0, 0, 0xFF, 0x80])
    assert struct.unpack_from("<HBBIII", page, 72) == (16, 0, 0, LONGEST, 0, 0)
    assert not any(page[88:])
    assert identify(host, 0x06, csi=1) == bytes(4096)
    assert asked(host, 0x00, KV) == 0x12C
    assert asked(host, 0x05, KV, 0) == INVALID_FIELD
    entries = struct.unpack_from("<256I", log_page(host, 0x05, 4096, 1), 1024)
    effects = {opcode: entry for opcode, entry in enumerate(entries) if entry}
    reservations = dict.fromkeys((0x0D, 0x0E, 0x11, 0x15), 1)
    own = {FLUSH: 1, STORE: 3, RETRIEVE: 1, LIST: 1, DELETE: 3, EXIST: 1}
    assert effects == own | reservations


def test_its_identifiers_are_in_its_structure() -> None:
    with powered(None, *SHAPES, settings=RpuSettings(nguid=True)) as host:
        descriptors, page = identify(host, 0x03, KV), identify(host, 0x05, KV, 1)
        nguid, eui64 = page[48:64], page[64:72]
        assert any(nguid) and any(eui64)
        assert b"\2\x10\0\0" + nguid in descriptors and b"\1\x08\0\0" + eui64 in descriptors


def test_the_key_is_in_four_dwords_and_its_bytes_count_from_the_lowest(host: Host) -> None:
    key = bytes(range(1, 17))
    host.put(b"value")
    done = host.command(
        host.io[1],
        STORE,
        nsid=KV,
        prp1=DATA,
        first=(0x04030201, 0x08070605),
        cdws=(5, 16, 0, 0, 0x0C0B0A09, 0x100F0E0D),
    )
    assert done.status == 0
    assert keys(host) == [key]
    assert retrieve(host, key) == b"value"
    # Bytes behind the length are none of the key.
    assert command(host, EXIST, key, length=15).status == ABSENT


@pytest.mark.parametrize("sgl", [False, True])
@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 4097, 8192, 8193, LONGEST - 1, LONGEST])
def test_values_of_every_size_are_stored_and_retrieved(host: Host, size: int, sgl: bool) -> None:
    value = (bytes(range(251)) * (size // 251 + 1))[:size]
    assert store(host, b"k", value, sgl=sgl) == 0
    assert retrieve(host, b"k", sgl=sgl) == value
    assert command(host, EXIST, b"k").status == 0


def test_a_value_that_is_too_long_is_refused(host: Host) -> None:
    assert command(host, STORE, b"k", LONGEST + 1).status == VALUE_SIZE
    shape = NamespaceShape.key_value(MIB, 100)
    with powered(None, NamespaceShape(MIB), shape) as other:
        assert [store(other, b"k", bytes(size)) for size in (100, 101)] == [0, VALUE_SIZE]
        assert identify(other, 0x05, KV, 1)[76:80] == (100).to_bytes(4, "little")


def test_a_smaller_buffer_gets_the_first_bytes_and_dword_0_the_size(host: Host) -> None:
    store(host, b"k", b"0123456789")
    for size in (0, 1, 9, 10, 11):
        host.put(b"#" * 16)
        done = command(host, RETRIEVE, b"k", size)
        assert (done.status, done.dw0) == (0, 10)
        assert host.data(16) == b"0123456789"[:size].ljust(16, b"#")
    assert command(host, RETRIEVE, b"k", LONGEST + 1).status == INVALID_FIELD


@pytest.mark.parametrize("opcode", [STORE, RETRIEVE, LIST, DELETE, EXIST])
def test_keys_have_1_to_16_bytes(host: Host, opcode: int) -> None:
    assert command(host, opcode, b"", 8, length=17).status == INVALID_FIELD
    assert command(host, opcode, b"", 8, length=255).status == INVALID_FIELD
    assert command(host, opcode, b"", 8).status == (0 if opcode == LIST else KEY_SIZE)


def test_the_options_of_a_store(host: Host) -> None:
    assert store(host, b"k", b"1", MUST_EXIST) == ABSENT
    assert store(host, b"k", b"2", MUST_EXIST | MUST_NOT_EXIST) == ABSENT
    assert store(host, b"k", b"3", MUST_NOT_EXIST | UNCOMPRESSED) == 0
    assert store(host, b"k", b"4", MUST_NOT_EXIST) == EXISTS
    assert store(host, b"k", b"5", MUST_EXIST | MUST_NOT_EXIST) == EXISTS
    assert retrieve(host, b"k") == b"3"
    assert store(host, b"k", b"6", MUST_EXIST) == 0
    assert retrieve(host, b"k") == b"6"


def test_delete_of_an_absent_key_is_an_error_if_the_feature_says_so(host: Host) -> None:
    def feature(opcode: int, nsid: int, value: int = 0) -> Cqe:
        return host.command(host.admin, opcode, nsid=nsid, cdws=(0x20, value))

    store(host, b"k", b"value")
    assert [command(host, DELETE, b"k").status for _ in range(2)] == [0, 0]
    assert command(host, EXIST, b"k").status == retrieve(host, b"k") == ABSENT
    assert feature(GET_FEATURES, KV).dw0 == 0
    assert feature(SET_FEATURES, KV, 1).status == 0
    assert feature(GET_FEATURES, KV).dw0 == 1
    assert command(host, DELETE, b"k").status == ABSENT
    assert feature(SET_FEATURES, 1, 1).status == INVALID_NAMESPACE
    with powered(None, NamespaceShape(MIB)) as plain:
        assert plain.command(plain.admin, GET_FEATURES, nsid=1, cdws=(0x20,)).status == 2


def test_the_feature_outlives_a_power_cycle_but_not_its_namespace(tmp_path: Path) -> None:
    (tmp_path / "drive").mkdir()
    with powered(tmp_path / "drive", *SHAPES) as host:
        assert host.command(host.admin, SET_FEATURES, nsid=KV, cdws=(0x20, 1)).status == 0
    with powered(tmp_path / "drive") as host:
        assert command(host, DELETE, b"k").status == ABSENT
        assert host.command(host.admin, 0x0D, nsid=KV, cdws=(1,)).status == 0
        host.put(struct.pack("<Q", MIB).ljust(4096, b"\0"))
        assert host.command(host.admin, 0x0D, cdws=(0, 1 << 24)).dw0 == KV
        host.put(struct.pack("<HH", 1, 0).ljust(4096, b"\0"))
        assert host.command(host.admin, 0x15, nsid=KV).status == 0
        assert command(host, DELETE, b"k").status == 0


def test_keys_are_listed_in_order_from_a_key_on(host: Host) -> None:
    assert keys(host) == []
    stored = [b"\0", b"\0\0", b"a", b"aa", b"b" * 16, b"c" * 3, b"\xff"]
    for key in reversed(stored):
        assert store(host, key, b"v") == 0
    assert keys(host) == keys(host, b"\0") == stored
    assert keys(host, b"aa") == keys(host, b"a0") == stored[3:]
    assert keys(host, b"\xff\xff") == []
    assert keys(host, size=4) == keys(host, size=7) == []
    assert keys(host, size=8) == stored[:1]
    assert keys(host, b"b", size=4 + 20 + 8) == stored[4:6]
    assert keys(host, b"b", size=4 + 20 + 7) == stored[4:5]
    assert command(host, LIST, b"", 3).status == INVALID_FIELD
    assert command(host, LIST, b"", LONGEST + 1).status == INVALID_FIELD


def test_keys_and_values_have_the_size_of_the_namespace() -> None:
    with powered(None, NamespaceShape(MIB), NamespaceShape.key_value(10)) as host:
        assert store(host, b"ab", b"12345678") == 0
        assert store(host, b"c", b"") == FULL
        assert store(host, b"ab", b"123456789") == FULL
        assert retrieve(host, b"ab", 16) == b"12345678"
        assert store(host, b"ab", b"1234567") == 0
        assert store(host, b"c", b"") == 0
        assert identify(host, 0x05, KV, 1)[16:24] == (10).to_bytes(8, "little")
        assert command(host, DELETE, b"ab").status == 0
        assert identify(host, 0x05, KV, 1)[16:24] == (1).to_bytes(8, "little")


def test_commands_of_other_command_sets_are_refused(host: Host) -> None:
    assert command(host, 0x04, b"k").status == command(host, 0x08, b"k").status == 1
    assert command(host, EXIST, b"k", nsid=1).status == 1
    assert command(host, FLUSH, b"").status == 0
    assert command(host, FLUSH, b"", nsid=0xFFFF_FFFF).status == 0


def test_a_protected_namespace_is_read_only(host: Host) -> None:
    store(host, b"k", b"value")
    assert host.command(host.admin, SET_FEATURES, nsid=KV, cdws=(0x84, 1)).status == 0
    assert store(host, b"k", b"other") == command(host, DELETE, b"k").status == WRITE_PROTECTED
    assert retrieve(host, b"k") == b"value"
    assert identify(host, 0x05, KV, 1)[43] == identify(host, 0x08, KV)[8] == 1
    assert host.command(host.admin, 0x80, nsid=KV).status == WRITE_PROTECTED
    assert host.command(host.admin, SET_FEATURES, nsid=KV, cdws=(0x84, 0)).status == 0
    assert store(host, b"k", b"other") == 0


def test_a_host_makes_and_deletes_namespaces(host: Host, tmp_path: Path) -> None:
    (tmp_path / "drive").mkdir()
    with powered(tmp_path / "drive", *SHAPES) as other:
        other.put(struct.pack("<Q", MIB).ljust(4096, b"\0"))
        made = other.command(other.admin, 0x0D, cdws=(0, 1 << 24))
        assert (made.status, made.dw0) == (0, 3)
        other.put(struct.pack("<HH", 1, 0).ljust(4096, b"\0"))
        assert other.command(other.admin, 0x15, nsid=3).status == 0
        assert nsids(other, 0x07, 1) == [2, 3]
        assert struct.unpack_from("<Q", identify(other, 0x05, 3, 1)) == (MIB,)
        other.put(SECRET)
        assert command(other, STORE, b"k", len(SECRET), nsid=3).status == 0
        assert found_in(tmp_path)
        assert other.command(other.admin, 0x0D, nsid=3, cdws=(1,)).status == 0
        assert nsids(other, 0x07, 1) == [2]
        assert not found_in(tmp_path)
        other.put(struct.pack("<Q", 2 * MIB).ljust(4096, b"\0"))
        assert other.command(other.admin, 0x0D, cdws=(0, 1 << 24)).status == 0x115


SECRET = b"a value that nobody is to find again"


def found_in(folder: Path) -> list[str]:
    """The files that contain the secret. One without blocks of the disk has zeros alone."""
    every = (path for path in folder.rglob("*") if path.is_file() and path.stat().st_blocks)
    return [path.name for path in every if SECRET in path.read_bytes()]


@pytest.mark.parametrize("how", ["format", "format all", "block erase", "overwrite"])
def test_no_byte_of_a_value_is_left(tmp_path: Path, how: str) -> None:
    (tmp_path / "drive").mkdir()
    with powered(tmp_path / "drive", *SHAPES) as host:
        for number in range(20):
            assert store(host, b"%d" % number, SECRET * 100) == 0
            assert command(host, DELETE, b"%d" % (number // 2)).status == 0
        assert found_in(tmp_path)
        nsid = KV if how == "format" else 0xFFFF_FFFF
        if "format" in how:
            assert host.command(host.admin, 0x80, nsid=nsid, cdws=(2,)).status == INVALID_FORMAT
            assert found_in(tmp_path)
            assert host.command(host.admin, 0x80, nsid=nsid).status == 0
        else:
            action = 2 if how == "block erase" else 3 | 1 << 4
            assert host.command(host.admin, 0x84, cdws=(action, 0x5A5A5A5A)).status == 0
            while host.goes_on():
                host.executor.run_all()
                host.service()
        assert not found_in(tmp_path)
        assert keys(host) == []
        assert identify(host, 0x05, KV, 1)[16:24] == bytes(8)
        assert store(host, b"k", b"new") == 0
    with powered(tmp_path / "drive") as host:
        assert retrieve(host, b"k") == b"new"


@pytest.mark.parametrize("stride", [53, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("what", ["change", "format", "finish", "delete", "sanitize"])
def test_values_of_a_process_that_is_killed_before_a_system_call(
    tmp_path: Path, what: str, stride: int
) -> None:
    """What was acknowledged is there, nothing is torn, and what was erased leaves no byte."""
    done = new_process("support.value_kills", what, str(tmp_path), stride)
    if "cannot be traced" in done.stderr:
        pytest.skip("this machine lets no process trace another one")
    assert done.returncode == 0, done.stderr


KEYS = st.one_of(st.binary(min_size=1, max_size=2), st.binary(min_size=1, max_size=16))
SIZES = st.sampled_from([0, 1, 15, 4095, 4096, 4097, 70_000])
COMMANDS = st.tuples(
    st.sampled_from([STORE, STORE, STORE, RETRIEVE, DELETE, EXIST, LIST]),
    st.integers(0, 5),
    SIZES,
    st.sampled_from([0, 0, MUST_EXIST, MUST_NOT_EXIST]),
    st.booleans(),
)


@settings(max_examples=25)
@given(st.lists(KEYS, min_size=6, max_size=6, unique=True), st.lists(COMMANDS, max_size=40))
def test_the_namespace_is_a_dictionary(
    chosen: list[bytes], commands: list[tuple[int, int, int, int, bool]]
) -> None:
    model: dict[bytes, bytes] = {}
    with powered(None, NamespaceShape(MIB), NamespaceShape.key_value(200_000)) as host:
        for step, (opcode, number, size, options, sgl) in enumerate(commands):
            key = chosen[number]
            if opcode == STORE:
                value = step.to_bytes(1, "little") * size
                used = sum(map(len, {**model, key: value})) + sum(
                    len(stored) for stored in {**model, key: value}.values()
                )
                expected = 0
                if options == MUST_EXIST and key not in model:
                    expected = ABSENT
                elif options == MUST_NOT_EXIST and key in model:
                    expected = EXISTS
                elif used > 200_000:
                    expected = FULL
                else:
                    model[key] = value
                assert store(host, key, value, options, sgl=sgl) == expected
            elif opcode == RETRIEVE:
                expected_value = model[key][:size] if key in model else ABSENT
                assert retrieve(host, key, size, sgl=sgl) == expected_value
            elif opcode == DELETE:
                model.pop(key, None)
                assert command(host, DELETE, key).status == 0
            elif opcode == EXIST:
                assert command(host, EXIST, key).status == (0 if key in model else ABSENT)
            else:
                assert keys(host, key) == sorted(other for other in model if other >= key)
        assert keys(host) == sorted(model)
        used = sum(len(key) + len(value) for key, value in model.items())
        assert identify(host, 0x05, KV, 1)[16:24] == used.to_bytes(8, "little")


def test_values_in_memory_move_with_the_state_of_the_drive(host: Host) -> None:
    assert store(host, b"empty", b"") == store(host, b"k", b"value") == 0
    with powered(None, *SHAPES) as target:
        assert store(target, b"other", b"is gone") == 0
        moved(host, target)
        assert keys(target) == [b"empty", b"k"]
        assert retrieve(target, b"k") == b"value"
        assert identify(target, 0x05, KV, 1)[16:24] == (11).to_bytes(8, "little")


def pair(key: bytes, value: bytes) -> bytes:
    return struct.pack("<BI", len(key), len(value)) + key + value


@pytest.mark.parametrize(
    "section",
    [
        b"\1",
        pair(b"k", b"value")[:-1],
        pair(b"", b""),
        pair(b"b", b"") + pair(b"a", b""),
        pair(b"a", b"") + pair(b"a", b""),
        pair(bytes(17), b""),
        pair(b"a", bytes(LONGEST + 1)),
        b"".join(pair(b"%d" % number, bytes(LONGEST)) for number in range(4)),
    ],
)
def test_a_state_with_impossible_values_is_refused(host: Host, section: bytes) -> None:
    sections = {name: [content] for name, content in split(save(host)).items()}
    assert sections["values2"] == [b""]
    with powered(None, *SHAPES) as target, pytest.raises(OSError, match="value|key|sect|bytes"):
        load(target, join({**sections, "values2": [section]}))


# Copy Values, by which programs get values.

MEMORY = 3
WITH_MEMORY = (*SHAPES, NamespaceShape.memory(2 * MIB))


def copy_values(host: Host, start: int, length: int, *sources: bytes) -> tuple[int, int, int]:
    """The status, and numbers of values and bytes."""
    host.put(b"".join(sources))
    done = host.command(
        host.io[1],
        0xA1,
        nsid=MEMORY,
        prp1=DATA,
        prp2=DATA + PAGE,
        first=(length & 0xFFFF_FFFF, length >> 32),
        cdws=(start, 0, len(sources) - 1),
    )
    return done.status, done.dw0, done.dw1


def source(key: bytes, count: int = 0xFFFF_FFFF, *, plain: bool = False, nsid: int = KV) -> bytes:
    return struct.pack("<IIBB6x16s", nsid, count, len(key), plain, key)


def with_header(key: bytes, value: bytes) -> bytes:
    return struct.pack("<IB3x16s", len(value), len(key), key) + value + bytes(-len(value) % 8)


def test_values_are_copied_to_memory() -> None:
    with powered(None, *WITH_MEMORY) as host:
        values = {b"a": b"1" * 100, b"b" * 16: b"", b"c": b"3" * 4096, b"d": b"4" * 8}
        for key, value in values.items():
            assert store(host, key, value) == 0
        every = b"".join(with_header(*item) for item in values.items())
        assert copy_values(host, 8, 8192, source(b"")) == (0, 4, len(every))
        assert memory_read(host, 8 + len(every) + 8) == bytes(8) + every + bytes(8)
        plain = source(b"b", 2, plain=True), source(b"a", 1, plain=True)
        assert copy_values(host, 0, 8192, *plain) == (0, 3, 4196)
        assert memory_read(host, 4196) == values[b"c"] + values[b"a"]
        # The first value without room ends it.
        assert copy_values(host, 0, 104, source(b"a", plain=True)) == (0, 2, 100)
        assert copy_values(host, 0, 108, source(b"d", plain=True), source(b"")) == (0, 1, 8)
        assert copy_values(host, 0, 0, source(b"")) == (0, 0, 0)
        assert copy_values(host, 0, 8192, source(b"e"), source(b"d", 0)) == (0, 0, 0)


def memory_read(host: Host, length: int) -> bytes:
    host.clear(DATA, length)
    done = host.command(
        host.io[1],
        2,
        nsid=MEMORY,
        prp1=DATA,
        prp2=DATA + PAGE if length <= 2 * PAGE else 0,
        cdws=(0, 0, -(-length // 4) * 4),
    )
    assert done.status == 0
    return host.data(length)


@pytest.mark.parametrize(
    ("start", "length", "given", "status"),
    [
        (2, 8, source(b""), INVALID_FIELD),
        (0, 6, source(b""), INVALID_FIELD),
        (2 * MIB, 8, source(b""), INVALID_FIELD),
        (0, 8, source(b"", nsid=1), INVALID_NAMESPACE),
        (0, 8, source(b"", nsid=MEMORY), INVALID_NAMESPACE),
        (0, 8, source(b"", nsid=9), INVALID_NAMESPACE),
        (0, 8, struct.pack("<IIBB6x16s", KV, 1, 17, 0, b""), INVALID_FIELD),
        (0, 8, struct.pack("<IIBB6x16s", KV, 1, 1, 2, b""), INVALID_FIELD),
    ],
)
def test_impossible_copies_of_values_are_refused(
    start: int, length: int, given: bytes, status: int
) -> None:
    with powered(None, *WITH_MEMORY) as host:
        assert copy_values(host, start, length, given)[0] == status


def test_many_small_values_are_copied_in_steps() -> None:
    with powered(None, *WITH_MEMORY) as host:
        values = host.rpu.controller.namespaces.values[0].media
        values.replace((number.to_bytes(2, "big"), memoryview(b"")) for number in range(10_000))
        assert copy_values(host, 0, 4096, source(b"", plain=True)) == (0, 10_000, 0)
        assert copy_values(host, 0, 240_000, source(b"")) == (0, 10_000, 240_000)
        assert copy_values(host, 0, 239_996, source(b"")) == (0, 9_999, 239_976)
