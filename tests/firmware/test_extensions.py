"""Extensions: what their functions get, and what a host sees of them."""

import logging
import struct
from pathlib import Path

import pytest

from nvme_spec.status import Status
from potash_firmware import extensions
from potash_firmware.extensions import ExtensionError
from support.extended import extended, written
from support.nvme_host import Host, SlowMedia

GET_LOG_PAGE = 0x02
READ, WRITE = 0x02, 0x01

HISTOGRAM = """
    seen_reads = []

    @completed(0x02)
    def seen(drive, command, microseconds):
        assert microseconds >= 0
        seen_reads.append(command.lba)

    @log_page(0xC5, name="Reads", size=512)
    def reads(drive):
        return bytes(seen_reads)

    @admin_command(0xC4, name="Clear reads", data="none")
    def clear(drive, command):
        seen_reads.clear()
        return command.cdw12
"""


def log_page(host: Host, lid: int, size: int, offset: int = 0) -> bytes:
    """Some bytes of a log page."""
    host.put(b"\xee" * size)
    cdw10 = lid | (size // 4 - 1) << 16
    assert host.command(host.admin, GET_LOG_PAGE, cdws=(cdw10, 0, offset)).status == 0
    return host.data(size)


def test_a_command_a_log_page_and_a_function_after_reads(tmp_path: Path) -> None:
    with extended(tmp_path, HISTOGRAM) as host:
        host.enable()
        queue = host.create_io_queue()
        for lba in (3, 5):
            assert host.command(queue, READ, nsid=1, cdws=(lba,)).status == 0
        assert host.command(queue, WRITE, nsid=1, cdws=(9,)).status == 0
        assert log_page(host, 0xC5, 512) == bytes([3, 5]).ljust(512, b"\0")
        assert log_page(host, 0xC5, 8, 508) == bytes(8)
        cleared = host.command(host.admin, 0xC4, cdws=(0, 0, 77))
        assert (cleared.status, cleared.dw0) == (0, 77)
        assert log_page(host, 0xC5, 4) == bytes(4)


def test_the_tables_have_what_is_registered(tmp_path: Path) -> None:
    text = HISTOGRAM + (
        '\n    @io_command(0xA1, name="Put", data="write", writes=True)\n'
        "    def put(drive, command): pass\n"
    )
    with extended(tmp_path, text) as host:
        host.enable()
        effects = log_page(host, 0x05, 4096)
        admin, io = (
            struct.unpack("<256I", effects[:1024]),
            struct.unpack("<256I", effects[1024:2048]),
        )
        assert admin[0xC4] & 1 and io[0xA1] & 3 == 3 and not io[0xA0]
        supported = struct.unpack("<256I", log_page(host, 0x00, 1024))
        assert supported[0xC5] == 1 and supported[0x02] & 1 and not supported[0xC6]
        assert host.command(host.admin, GET_LOG_PAGE, cdws=(0xC6 | 1 << 16,)).status == 0x109


def test_data_is_moved_as_the_opcode_says(tmp_path: Path) -> None:
    text = """
    kept = bytearray()

    @io_command(0xA1, name="Put", data="write")
    def put(drive, command):
        assert command.queue == 1 and command.nsid == 1
        kept[:] = command.data

    @io_command(0xA2, name="Get", data="read", size=lambda command: command.cdw11)
    def get(drive, command):
        return kept[:command.cdw12]
    """
    with extended(tmp_path, text) as host:
        host.enable()
        queue = host.create_io_queue()
        host.put(b"storage engineer" * 4)
        assert host.command(queue, 0xA1, nsid=1, cdws=(16,)).status == 0
        host.put(b"\xff" * 64)
        assert host.command(queue, 0xA2, nsid=1, cdws=(0, 32, 7)).status == 0
        assert host.data(64) == b"storage" + bytes(25) + b"\xff" * 32
        assert host.command(queue, 0xA2, nsid=9, cdws=(0, 32, 7)).status == Status.INVALID_FIELD
        # More than MDTS is refused before memory is allocated.
        assert host.command(queue, 0xA1, nsid=1, cdws=(1 << 30,)).status == Status.INVALID_FIELD
        assert host.command(queue, 0xA2, nsid=1, cdws=(0, 1 << 30)).status == Status.INVALID_FIELD


def test_a_function_refuses_its_command_with_a_status(tmp_path: Path) -> None:
    text = """
    @admin_command(0xC4, name="Refuse", data="none")
    def refuse(drive, command):
        raise NvmeError(Status.LBA_OUT_OF_RANGE, "there is no such block", lba=7)
    """
    with extended(tmp_path, text) as host:
        host.enable()
        refused = host.command(host.admin, 0xC4)
        assert (refused.status, refused.dnr) == (0x80, True)


def test_an_event_refers_to_a_log_page(tmp_path: Path) -> None:
    text = HISTOGRAM + (
        '\n    @admin_command(0xC8, name="Notify", data="none")\n'
        "    def notify(drive, command): return drive.notify(0xC5, info=9)\n"
    )
    with extended(tmp_path, text) as host:
        host.enable()
        host.place(host.admin, 0x0C, 50)
        host.ring(host.admin)
        host.service()
        host.place(host.admin, 0xC8, 51)
        host.ring(host.admin)
        host.service()
        completions = {one.cid: one.dw0 for one in host.reap(host.admin)}
        assert completions == {50: 0xC5 << 16 | 9 << 8 | 7, 51: 1}


def test_a_conflict_names_both(tmp_path: Path) -> None:
    with pytest.raises(
        ExtensionError, match=r"First .*line 2.* Second .*opcode C4h|Second .*First"
    ):
        extensions.load(
            [
                written(
                    tmp_path,
                    """
                    @admin_command(0xC4, name="First", data="none")
                    def first(drive, command): pass

                    @admin_command(0xC4, name="Second", data="none")
                    def second(drive, command): pass
                    """,
                )
            ]
        )
    with pytest.raises(ExtensionError, match=r"Mine .* and Potash's Fault Receive both have Admin"):
        extended(
            tmp_path,
            '@admin_command(0xF2, name="Mine", data="read")\ndef mine(drive, command): pass\n',
        )
    with pytest.raises(ExtensionError, match=r"Mine .* and Potash's Smart both have log page 02h"):
        extended(tmp_path, '@log_page(2, name="Mine", size=4)\ndef mine(drive): pass\n')


@pytest.mark.parametrize(
    "body",
    ["1 / 0", "return 'text'", "return -1", "while True: pass", "raise SystemExit", "return []"],
)
def test_a_failure_ends_the_command_and_is_one_line(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    body: str,
) -> None:
    monkeypatch.setattr(extensions, "STEP_LIMIT", 0.05)
    text = f"""
    @admin_command(0xC4, name="Bad", data="none")
    def bad(drive, command):
        {body}
    """
    with extended(tmp_path, text) as host, caplog.at_level(logging.ERROR):
        host.enable()
        assert host.command(host.admin, 0xC4).status == Status.INTERNAL_ERROR
        (record,) = [one for one in caplog.records if one.levelno == logging.ERROR]
        assert "Bad" in record.message and "mine.py, line " in record.message
        assert host.command(host.create_io_queue(), READ, nsid=1).status == 0


def test_without_functions_after_commands_the_fast_path_is_used(tmp_path: Path) -> None:
    text = '@admin_command(0xC4, name="Nothing", data="none")\ndef nothing(drive, command): pass\n'
    for kind, used in ((text, True), (HISTOGRAM, False)):
        with extended(tmp_path, kind, media={1: SlowMedia.create(1 << 20)}) as host:
            assert host.rpu.arbiter._always_slow is not used
