"""Traces in the forms in which tools and public collections have them."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import pytest

from potash.timing import traces
from potash.timing.traces import TimingError, Trace
from potash_firmware.ftl.requests import Op

PAGES = 1000
R, W, T, F = Op.READ, Op.WRITE, Op.TRIM, Op.FLUSH

BLKPARSE = """\
  8,0    3        1     0.000000000   697  G   W 16 + 8 [kjournald]
  8,0    3        2     0.000001830   697  Q  WS 16 + 8 [kjournald]
  8,0    3        3     0.000002000   697  Q WFS 32 + 16 [kjournald]
  8,0    3        4     0.000003000   697  Q  DS 64 + 64 [fstrim]
  8,0    3        5     0.000004000   697  Q FWS [kjournald]
  8,0    3        6     0.000005000   697  D  WS 16 + 8 [kjournald]
  8,0    3        7     0.000006000     0  C  WS 16 + 8 [0]
  8,0    1        8     1.000002000   700  Q  RA 80 + 8 [cat]
CPU0 (8,0):
 Reads Queued:           1,        4KiB
"""

IOLOG = """\
fio version 2 iolog
/dev/nvme0n1 add
/dev/nvme0n1 open
/dev/nvme0n1 write 8192 4096
/dev/nvme0n1 wait 100 0
/dev/nvme0n1 read 0 8192
/dev/nvme0n1 trim 0 4096
/dev/nvme0n1 datasync
/dev/nvme0n1 close
"""

IOLOG_3 = """\
fio version 3 iolog
2 /dev/nvme0n1 add
2 /dev/nvme0n1 open
7 /dev/nvme0n1 write 8192 4096
107 /dev/nvme0n1 read 0 8192
107 /dev/nvme0n1 trim 0 4096
107 /dev/nvme0n1 sync 0 0
108 /dev/nvme0n1 close
"""


def blktrace(order: str, *events: tuple[int, int, int, int], text: bytes = b"") -> bytes:
    """Records of (ns, sector, bytes, action), and of a message before them."""
    records = [(0, 0, 0, 1 << 26 | 2, text), *((*event, b"") for event in events)]
    return b"".join(
        struct.pack(
            f"{order}IIQQIIIIIHH",
            *(0x65617407, number, time, sector, size, action, 1, 0x800000, 0, 0, len(more)),
        )
        + more
        for number, (time, sector, size, action, more) in enumerate(records)
    )


def loaded(tmp_path: Path, content: bytes | str, name: str = "trace", faster: float = 1) -> Trace:
    path = tmp_path / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return traces.load(path, PAGES, faster)


def rows(trace: Trace) -> list[tuple[int, int, int, int]]:
    return [(time, op, first, count) for time, op, first, count, _, _ in trace.requests.tolist()]


@pytest.mark.parametrize(
    ("form", "content", "expected"),
    [
        ("Alibaba", "3,R,8192,4096,1000\n3,W,12288,8192,1002\n", [(0, R, 2, 1), (2000, W, 3, 2)]),
        ("Tencent", "5,16,8,0,1283\n6,8,24,1,1283\n", [(0, R, 2, 1), (10**9, W, 1, 3)]),
        ("MSR", "10,h,0,Read,0,512,7\n11,h,0,Write,4000,200,7\n", [(0, R, 0, 1), (100, W, 0, 2)]),
        (
            "blkparse",
            BLKPARSE,
            [
                (0, W, 2, 1),
                (170, W, 4, 2),
                (1170, T, 8, 8),
                (2170, F, 0, 0),
                (10**9 + 170, R, 10, 1),
            ],
        ),
        (
            "fio",
            IOLOG,
            [(0, W, 2, 1), *((100_000, *one) for one in [(R, 0, 2), (T, 0, 1), (F, 0, 0)])],
        ),
        (
            "fio",
            IOLOG_3,
            [(0, W, 2, 1), *((100_000, *one) for one in [(R, 0, 2), (T, 0, 1), (F, 0, 0)])],
        ),
    ],
)
def test_forms_are_found_out(
    form: str, content: str, expected: list[tuple[int, Op, int, int]], tmp_path: Path
) -> None:
    found = loaded(tmp_path, content)
    assert (found.form, rows(found)) == (form, expected)
    assert rows(loaded(tmp_path, gzip.compress(content.encode()), "trace.gz")) == expected


@pytest.mark.parametrize("order", "<>")
def test_records_of_blktrace(order: str, tmp_path: Path) -> None:
    queue, issue = 1 | 1 << 20, 7 | 1 << 22
    write, flush, discard, fua = (1 << 16 + bit for bit in (1, 2, 13, 15))
    of_group = 1 << 8
    events = (
        (500, 16, 4096, queue | write | fua),
        (600, 16, 4096, issue | write),
        (700, 64, 8192, queue | write | discard | of_group),
        (800, 0, 0, queue | write | flush),
        (900, 8, 512, queue),
    )
    found = loaded(tmp_path, blktrace(order, *events, text=b"hello"))
    assert rows(found) == [(0, W, 2, 1), (200, T, 8, 2), (300, F, 0, 0), (400, R, 1, 1)]
    assert found.requests["fua"].tolist() == [1, 0, 0, 0]
    found = loaded(tmp_path, blktrace(order, events[1]))
    assert rows(found) == [(0, W, 2, 1)], "issued, where nothing was queued"


def test_requests_beyond_the_end_begin_again(tmp_path: Path) -> None:
    found = loaded(tmp_path, f"3,W,{1002 * 4096},4096,1\n3,R,{998 * 4096},{4 * 4096},2\n")
    assert rows(found) == [(0, W, 2, 1), (1000, R, 998, 2), (1000, R, 0, 2)]
    assert (found.folded, found.split) == (1, 1)


def test_times_are_divided(tmp_path: Path) -> None:
    found = loaded(tmp_path, "3,W,0,4096,1\n3,R,0,4096,9\n", faster=4)
    assert [one[0] for one in rows(found)] == [0, 2000]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "has no requests"),
        (b"\xff\xfe\x00", "it is not text"),
        (blktrace("<", (0, 0, 4096, 1))[:60], "record 2 is damaged"),
        (blktrace("<", text=b"hello")[:-1], "record 1 is damaged"),
        (b"fio version 2 iolog\n/dev/x jump 0 1\n", "line 2 is"),
        (b"fio version 3 iolog\n/dev/x read 0 4096\n", "line 2 is"),
        (b"fio version 3 iolog\n1 /dev/x read 0\n", "line 2 is"),
        (b"fio version 2 iolog\n/dev/x read 0 0\n", "request 1 is not a read or write"),
        (b"fio version 2 iolog\n/dev/x read -4096 4096\n", "request 1 is not a read"),
        (BLKPARSE.encode() + b"  8,0 nonsense\n", "line 11 is"),
        (b"1,x,0,4096,7\n", "not a trace in a known format"),
        (b"1,R,0,4096,-7\n", "negative (time)"),
        (b"4,8,8,2,9\n", "request 1 is not a read or write"),
    ],
)
def test_damaged_traces_are_refused_in_a_sentence(
    content: bytes, expected: str, tmp_path: Path
) -> None:
    with pytest.raises(TimingError, match="trace") as raised:
        loaded(tmp_path, content)
    assert expected in str(raised.value) and "\n" not in str(raised.value)
