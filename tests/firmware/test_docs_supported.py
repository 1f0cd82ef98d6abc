"""`docs/supported.md` is what a running device reports of itself."""

import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.memory import MEMORY
from support.memory import powered as powered_memory
from support.namespaces import IDENTIFY, TWO, log_page, powered
from support.nvme_host import DATA, PAGE, Host

PATH = Path(__file__).parents[2] / "docs" / "supported.md"
GET_LOG, GET_FEATURES, DOORBELL_BUFFERS = 2, 0xA, 0x7C
INVALID_OPCODE, INVALID_FIELD, INVALID_LOG_PAGE = 0x001, 0x002, 0x109
CONDITIONS = {
    "with `--allow-faults`", "with `--clock stepped`", "with `--fdp`", "with `--ocp`", "with `--power-states`", "with `--hmb`",
    "with several controllers, or `--ana`",
    "with memory namespaces",
    "with compute namespaces", "with zoned namespaces", "with an FTL of an extension",
    "with key value namespaces",
}  # fmt: skip
"""Of what this device does not have."""
NOWHERE = 1
"""An address that no command takes for its data, so that none that takes data is done."""


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    with powered() as host:
        host.create_io_queue()
        yield host


def rows(heading: str) -> list[list[str]]:
    """The cells of the table under a heading."""
    part = PATH.read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in part.splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def states(heading: str) -> dict[int, str]:
    """What the page says of each number, of the 256 that there are."""
    listed = {int(row[0][:-1], 16): row[2] for row in rows(heading)}
    assert len(listed) == len(rows(heading))
    return listed


def supported(heading: str, refusal: str) -> set[int]:
    found = states(heading)
    assert set(found.values()) - CONDITIONS == {"yes", refusal}
    return {number for number, state in found.items() if state == "yes"}


@pytest.mark.parametrize("which", ["Admin commands", "I/O commands"])
def test_an_opcode_is_refused_unless_the_page_has_it(host: Host, which: str) -> None:
    queue = host.io[1] if which == "I/O commands" else host.admin
    said = supported(which, "Invalid Opcode")
    answered: dict[int, int] = {}
    for opcode in range(256):
        nsid = 1 if which == "I/O commands" else 0
        host.place(queue, opcode, opcode, nsid=nsid, prp1=NOWHERE)
        host.ring(queue)
        host.service()
        while host.executor.waiting:
            host.executor.run_all()
            host.service()
        answered.update({one.cid: one.status for one in host.reap(queue)})
    waiting = {0x0C} if queue is host.admin else set()
    assert set(range(256)) - set(answered) == waiting  # A request for events is not answered.
    assert {opcode for opcode, status in answered.items() if status != INVALID_OPCODE} == (
        said - waiting
    )
    assert waiting <= said


def answers(host: Host, opcode: int, refusal: int, dwords: Callable[[int], int]) -> set[int]:
    """The numbers, in dword 10 as `dwords` puts them, that are not refused so."""
    found = set()
    for number in range(256):
        statuses = {
            host.command(host.admin, opcode, nsid=nsid, cdws=(dwords(number),)).status
            for nsid in ((0, 1) if opcode != GET_LOG else (0,))
        }
        if statuses != {refusal}:
            found.add(number)
    return found


def test_a_log_page_is_refused_unless_the_page_has_it(host: Host) -> None:
    said = supported("Log pages", "Invalid Log Page")
    found = answers(host, GET_LOG, INVALID_LOG_PAGE, lambda lid: 127 << 16 | lid)
    assert found == said
    listed = log_page(host, 0, 1024)
    assert {lid for lid in range(256) if listed[4 * lid] & 1} == said
    for lid, _, _, scope, _ in rows("Log pages"):
        if int(lid[:-1], 16) in said and scope != "LSI":
            cdws = (127 << 16 | int(lid[:-1], 16),)
            assert host.command(host.admin, GET_LOG, nsid=0xFFFFFFFE, cdws=cdws).status == 0x00B
            whole = host.command(host.admin, GET_LOG, nsid=0xFFFFFFFF, cdws=cdws).status
            assert (whole == 0x00B) == (scope == "namespace"), lid


def test_a_feature_is_refused_unless_the_page_has_it(host: Host) -> None:
    said = supported("Features", "Invalid Field")
    assert answers(host, GET_FEATURES, INVALID_FIELD, lambda fid: fid) == said
    for row in rows("Features"):
        if row[2] != "yes":
            continue
        fid = int(row[0][:-1], 16)
        nsid = int(row[3] == "namespace")
        capabilities = host.command(host.admin, GET_FEATURES, nsid=nsid, cdws=(3 << 8 | fid,))
        assert capabilities.status == 0
        assert capabilities.dw0 & 0b11 == nsid << 1 | (row[4] == "saved"), row


def test_a_structure_is_refused_unless_the_page_has_it(host: Host) -> None:
    said = supported("Identify", "Invalid Field")
    assert answers(host, IDENTIFY, INVALID_FIELD, lambda cns: cns) == said


CONTROLLER = {
    "OAES": (92, 4),
    "CTRATT": (96, 4),
    "NVMSR": (253, 1),
    "OACS": (256, 2),
    "FRMW": (260, 1),
    "LPA": (261, 1),
    "DSTO": (318, 1),
    "HCTMA": (322, 2),
    "SANICAP": (328, 4),
    "ONCS": (520, 2),
    "FUSES": (522, 2),
    "FNA": (524, 1),
    "VWC": (525, 1),
    "SGLS": (536, 4),
}
NAMESPACE = {
    "NSFEAT": (24, 1),
    "MC": (27, 1),
    "DPC": (28, 1),
    "RESCAP": (31, 1),
    "DLFEAT": (33, 1),
}
"""Where the fields with bits are, by the standard: offset and size."""


def structure(host: Host, cns: int, nsid: int) -> bytes:
    assert host.command(host.admin, IDENTIFY, nsid=nsid, prp1=DATA, cdws=(cns,)).status == 0
    return host.data(PAGE)


def check_bits(
    data: bytes, listed: list[tuple[str, str, str]], places: dict[str, tuple[int, int]]
) -> None:
    """Every bit that is set is listed as such, and no other one."""
    told = dict.fromkeys(places, 0)
    for field, bits, state in listed:
        place, _, value = bits.partition(" = ")
        low = int(place.split(":")[-1])
        if state == "yes":
            told[field] |= int(value or 1) << low
        elif state != "–":
            told[field] |= int(state) << low
    assert told == {
        field: int.from_bytes(data[at : at + size], "little")
        for field, (at, size) in places.items()
    }


def test_the_controller_says_each_bit_as_the_page_does(host: Host) -> None:
    listed = [(field, bits, state) for field, bits, _, state in rows("Bits of Identify Controller")]
    check_bits(structure(host, 1, 0), listed, CONTROLLER)


@pytest.mark.parametrize(("column", "nsid"), [(0, 2), (1, 1)])
def test_a_namespace_says_each_bit_as_the_page_does(host: Host, column: int, nsid: int) -> None:
    listed = [
        (field, bits, states[column])
        for field, bits, _, *states in rows("Bits of Identify Namespace")
    ]
    check_bits(structure(host, 0, nsid), listed, NAMESPACE)


def values(table: list[list[str]], column: int) -> Iterator[tuple[int, int, int]]:
    """Offset, size and value of the fields that are whole bytes and numbers."""
    for place, _, *cells in table:
        cell = cells[column]
        if "bits" in place or not cell.rstrip("h").isalnum() or cell == "varies":
            continue
        last, _, first = place.partition(":")
        value = int(cell[:-1], 16) if cell.endswith("h") else int(cell)
        yield int(first or last), int(last) - int(first or last) + 1, value


@pytest.mark.parametrize(
    ("heading", "column", "cns", "nsid", "fewest"),
    [
        ("Identify Controller (CNS 01h)", 0, 1, 0, 30),
        ("Identify Namespace (CNS 00h and 11h)", 0, 0, 2, 11),
        ("Identify Namespace (CNS 00h and 11h)", 1, 0x11, 1, 11),
    ],
)
def test_each_field_has_its_value_and_no_other_one_has_any(
    host: Host, heading: str, column: int, cns: int, nsid: int, fewest: int
) -> None:
    data = bytearray(structure(host, cns, nsid))
    found = list(values(rows(heading), column))
    assert len(found) >= fewest
    for at, size, value in found:
        assert int.from_bytes(data[at : at + size], "little") == value, at
    for place, *_ in rows(heading):
        last, _, first = place.split(",")[0].partition(":")
        data[int(first or last) : int(last) + 1] = bytes(int(last) - int(first or last) + 1)
    assert not any(data)


def test_the_formats_are_listed(host: Host) -> None:
    listed = [
        tuple(0 if cell == "–" else int(cell) for cell in cells) for cells in rows("LBA formats")
    ]
    extended = structure(host, 5, 1)
    for nsid, shape in enumerate(TWO, 1):
        data = structure(host, 0, nsid)
        assert len(listed) == data[25] + 1
        for at, (index, block, metadata, guard, tag) in enumerate(listed):
            assert at == index
            assert struct.unpack_from("<HB", data, 128 + 4 * at) == (
                metadata,
                block.bit_length() - 1,
            )
            (word,) = struct.unpack_from("<I", extended, 12 + 4 * at)
            assert word == tag | {0: 0, 16: 0, 32: 1, 64: 2}[guard] << 7
        assert 1 << data[128 + 4 * (data[26] & 15) + 2] == shape.block_size


@pytest.mark.parametrize(
    ("heading", "nsid"), [("Memory commands (CSI 03h)", MEMORY), ("Compute commands (CSI 04h)", 3)]
)
def test_an_opcode_of_another_command_set_is_refused_unless_the_page_has_it(
    heading: str, nsid: int
) -> None:
    with powered_memory() as host:
        answered = {
            opcode
            for opcode in range(256)
            if host.command(host.io[1], opcode, nsid=nsid, prp1=NOWHERE).status != INVALID_OPCODE
        }
    assert answered == set(states(heading))
