"""Extensions: what their functions get, and what a host sees of them."""

import logging
import runpy
import struct
from pathlib import Path
from typing import Any

import pytest

from nvme_spec.status import Status
from potash_device.media.drive import Drive
from potash_device.media.shapes import NamespaceShape
from potash_firmware import extension_files, extension_limits
from potash_firmware.extension_limits import ExtensionError
from potash_firmware.rpu.extended import LEAST_CLOSING
from potash_firmware.rpu.namespaces.memory import MemoryNamespace
from support import zones
from support.extended import extended, settings, written
from support.modelled_time import PROFILE, modelled, timing_of
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
        extension_files.load(
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


def test_a_test_can_import_an_extension(tmp_path: Path) -> None:
    file = written(tmp_path, HISTOGRAM)
    for _ in range(2):
        assert runpy.run_path(file)["reads"](None) == b""


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
    monkeypatch.setattr(extension_limits, "STEP_LIMIT", 0.05)
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


SCRUB = """
    @io_command(0xA0, name="Scrub", data="none")
    def scrub(drive, command):
        zeroes = 0
        for lba in command.range():
            data = yield drive.read(command.nsid, lba)
            zeroes += not any(data)
        return zeroes

    @io_command(0xA1, name="Fill", data="write", size=1, writes=True)
    def fill(drive, command):
        namespace = drive.namespaces[command.nsid]
        for lba in command.range():
            yield drive.write(command.nsid, lba, command.data * namespace.block_size)

    @admin_command(0xC8, name="Later", data="none")
    def later(drive, command):
        before = drive.now()
        yield drive.sleep(250)
        assert drive.now() >= before + 250_000
        return 5

    @admin_command(0xCC, name="Catch", data="none")
    def catch(drive, command):
        try:
            yield drive.read(1, 1 << 40)
        except NvmeError as error:
            return error.status
"""


def test_a_command_that_waits_blocks_no_other(tmp_path: Path) -> None:
    with extended(tmp_path, SCRUB, media={1: SlowMedia.create(1 << 20)}) as host:
        host.enable()
        queue = host.create_io_queue()
        host.place(queue, 0xA0, 1, nsid=1, cdws=(0, 0, 2))
        host.place(queue, 0xA0, 2, nsid=1, cdws=(8,))
        host.ring(queue)
        host.service()
        assert len(host.executor.waiting) == 2  # a block of each
        host.executor.run_next(1)
        host.service()
        assert [(one.cid, one.status, one.dw0) for one in host.reap(queue)] == [(2, 0, 1)]
        while host.executor.waiting:
            host.executor.run_next()
            host.service()
        assert [(one.cid, one.status, one.dw0) for one in host.reap(queue)] == [(1, 0, 3)]


def test_what_an_extension_writes_is_what_a_host_reads(tmp_path: Path) -> None:
    with extended(tmp_path, SCRUB) as host:
        host.enable()
        queue = host.create_io_queue()
        host.put(b"\x5a")
        assert host.command(queue, 0xA1, nsid=1, cdws=(3, 0, 1)).status == 0
        before = host.rpu.controller.health.reads
        assert host.command(queue, 0xA0, nsid=1, cdws=(2, 0, 3)).dw0 == 2
        assert host.rpu.controller.health.reads == before  # which counts what hosts read
        assert host.command(queue, READ, nsid=1, cdws=(4,)).status == 0
        assert host.data(4096) == b"\x5a" * 4096
        later = host.command(host.admin, 0xC8)
        assert (later.status, later.dw0) == (0, 5)
        assert host.command(host.admin, 0xCC).dw0 == Status.LBA_OUT_OF_RANGE
        beyond = host.command(queue, 0xA0, nsid=1, cdws=(256,))
        assert beyond.status == Status.LBA_OUT_OF_RANGE


def test_a_reset_closes_a_command_that_waits(tmp_path: Path, caplog: Any) -> None:
    text = """
    @admin_command(0xC4, name="Wait", data="none")
    def wait(drive, command):
        try:
            yield drive.sleep(1e9)
        finally:
            drive.log("closed")
    """
    with extended(tmp_path, text) as host, caplog.at_level(logging.INFO):
        host.enable()
        host.place(host.admin, 0xC4, 1)
        host.ring(host.admin)
        host.service()
        host.disable()
        assert "closed" in caplog.text
        host.enable()


def test_a_reset_waits_for_all_of_them_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    text = """
    @admin_command(0xC4, name="Wait", data="none")
    def wait(drive, command):
        try:
            yield drive.sleep(1e9)
        finally:
            while True:
                pass
    """
    limits = []

    def noted(seconds: float, function: Any, *args: Any) -> Any:
        if function.__name__ == "close":
            limits.append(seconds)
        return extension_limits.limited(seconds, function, *args)

    monkeypatch.setattr(extension_limits, "STEP_LIMIT", 0.05)
    monkeypatch.setattr("potash_firmware.rpu.extended.limited", noted)
    with extended(tmp_path, text) as host, caplog.at_level(logging.ERROR):
        host.enable()
        for cid in range(5):
            host.place(host.admin, 0xC4, cid)
        host.ring(host.admin)
        host.service()
        host.disable()
        assert limits == [0.05, *[LEAST_CLOSING] * 4]
        assert caplog.text.count("it takes too long") == 5
        host.enable()


def test_a_command_that_sleeps_for_no_time_lets_others_run(tmp_path: Path) -> None:
    """Also while the guest's clock stands still."""
    text = """
    turns = []
    told = []

    @admin_command(0xC4, name="Poll", data="none")
    def poll(drive, command):
        while not told and len(turns) < 1000:
            turns.append(0)
            yield drive.sleep(0)
        return len(turns)

    @admin_command(0xC8, name="Tell", data="none")
    def tell(drive, command):
        told.append(0)
    """
    with extended(tmp_path, text) as host:
        host.enable()
        for opcode in (0xC4, 0xC8):
            host.place(host.admin, opcode, opcode)
            host.ring(host.admin)
            host.service()
        host.service()
        ended = [(one.cid, one.dw0) for one in host.reap(host.admin)]
        assert ended[0] == (0xC8, 0) and ended[1][0] == 0xC4 and ended[1][1] < 10


def test_the_bytes_of_a_memory_namespace(tmp_path: Path) -> None:
    text = """
    @io_command(0xB0, name="Invert", data="none", command_sets=[CommandSet.MEMORY])
    def invert(drive, command):
        memory = drive.memory(command.nsid)
        memory[:4] = bytes(255 - one for one in memory[:4])
        assert drive.namespaces[command.nsid].blocks == len(memory)
    """
    shapes = [NamespaceShape(1 << 20), NamespaceShape.memory(1 << 16)]
    with Drive.open(None, shapes) as drive, extended(tmp_path, text, drive=drive) as host:
        host.css = 6
        host.enable()
        queue = host.create_io_queue()
        assert host.command(queue, 0xB0, nsid=2).status == 0
        memory = host.rpu.controller.namespaces.of_kind(MemoryNamespace, 2).memory
        assert memory.bytes[:5] == b"\xff" * 4 + b"\0"
        assert host.command(queue, 0xB0, nsid=1).status == Status.INVALID_OPCODE


FEATURES = """
    @feature(0xC4, name="Locate light", saved=True, default=1)
    def locate(drive, value):
        if value > 2:
            raise NvmeError(Status.INVALID_FIELD, "off, on or blinking")

    @feature(0xC5, name="Owner", size=8, default=b"nobody")
    def owner(drive, value):
        drive.log(f"{value!r} owns it")

    @admin_command(0xC8, name="Light", data="none")
    def light(drive, command):
        return drive.feature(0xC4) << 8 | len(drive.feature(0xC5).rstrip(b"\\0"))
"""
SET_FEATURES, GET_FEATURES = 0x09, 0x0A


def test_features(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with extended(tmp_path, FEATURES) as host, caplog.at_level(logging.INFO):
        host.enable()
        admin = host.admin
        assert host.command(admin, GET_FEATURES, cdws=(0xC4,)).dw0 == 1
        assert host.command(admin, GET_FEATURES, cdws=(0xC4 | 3 << 8,)).dw0 == 5  # saveable
        assert host.command(admin, GET_FEATURES, cdws=(0xC5 | 3 << 8,)).dw0 == 4
        assert host.command(admin, SET_FEATURES, cdws=(0xC4 | 1 << 31, 2)).status == 0
        assert host.command(admin, SET_FEATURES, cdws=(0xC4, 3)).status == Status.INVALID_FIELD
        assert "Locate light: Invalid Field (SCT 0h, SC 02h): off, on or" in caplog.text
        assert host.command(admin, SET_FEATURES, cdws=(0xC5 | 1 << 31,)).status == 0x10D
        host.put(b"students")
        assert host.command(admin, SET_FEATURES, cdws=(0xC5,)).status == 0
        assert host.command(admin, 0xC8).dw0 == 2 << 8 | 8
        host.put(bytes(8))
        assert host.command(admin, GET_FEATURES, cdws=(0xC5,)).status == 0
        assert host.data(8) == b"students"
        supported = struct.unpack("<256I", log_page(host, 0x12, 1024))
        assert supported[0xC4] & 1 and supported[0xC5] & 1 and not supported[0xC6]
        host.disable()
        host.enable()
        assert host.command(host.admin, 0xC8).dw0 == 2 << 8 | 6


def test_a_name_that_no_package_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    said = "no installed package has an extension 'mine'"
    with pytest.raises(ExtensionError, match=f"^{said}$"):
        extension_files.load(["mine"])
    (tmp_path / "mine.py").touch()
    with pytest.raises(ExtensionError, match=rf"^{said}; did you mean mine\.py\?$"):
        extension_files.load(["mine"])


def test_what_an_extension_reads_takes_its_modelled_time(tmp_path: Path) -> None:
    text = """
    @io_command(0xA0, name="Time", data="none")
    def time(drive, command):
        before = drive.now()
        yield drive.read(command.nsid, 0)
        return drive.now() - before
    """
    with Host(settings=settings(tmp_path, text, modelled())) as host:
        host.enable()
        queue = host.create_io_queue()
        assert host.command(queue, WRITE, nsid=1).status == 0
        taken = host.command(queue, 0xA0, nsid=1).dw0
        assert taken > PROFILE.read_command_ns  # of blocks in the write buffer


def test_a_modelled_time_is_of_no_other_command(tmp_path: Path) -> None:
    """The time of what an extension has read is not the one at which another command completes."""
    text = """
    @io_command(0xA0, name="Read and sleep", data="none")
    def both(drive, command):
        yield drive.read(1, 0)
        yield drive.sleep(1000)
    """
    with Host(settings=settings(tmp_path, text, modelled())) as host:
        host.enable()
        queue, other = host.create_io_queue(), host.create_io_queue(2)
        host.place(queue, 0xA0, 1, nsid=1)
        host.ring(queue)
        host.service()
        assert host.goes_on()  # the read is done
        host.place(host.admin, 0x06, 2, cdws=(1,))
        host.ring(host.admin)
        host.service()
        assert [one.cid for one in host.reap(host.admin)] == [2]
        assert not timing_of(host).completions
        # Nor are those of a command ended by the deletion of its queue, before that has ended.
        host.rpu.controller.outstanding.abort_queue(1)
        assert host.command(other, WRITE, nsid=1).status == 0
        assert [one.qid for one in timing_of(host).completions] == [2]


def test_an_extension_follows_the_rules_of_zones(tmp_path: Path) -> None:
    with zones.powered(settings=settings(tmp_path, SCRUB)) as host:
        queue = host.io[1]
        host.put(b"\x11")
        assert host.command(queue, 0xA1, nsid=1, cdws=(0, 0, 1)).status == 0
        assert host.command(queue, 0xA1, nsid=1, cdws=(0,)).status == Status.ZONE_INVALID_WRITE
        assert host.command(queue, 0xA0, nsid=1, cdws=(0, 0, 2)).dw0 == 1


def test_a_package_is_loaded_with_its_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whenever it is loaded, as its modules register while they are imported."""
    package, metadata = tmp_path / "packaged", tmp_path / "packaged-1.0.dist-info"
    package.mkdir()
    metadata.mkdir()
    (package / "__init__.py").write_text("from packaged import states\n")
    (package / "states.py").write_text(
        'from potash.extend import state\nmine = state("mine", default=list)\n'
    )
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: packaged\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[potash.extensions]\npackaged = packaged\n")
    monkeypatch.syspath_prepend(tmp_path)
    for _ in range(2):
        assert set(extension_files.load(["packaged"]).states) == {"mine"}
    with pytest.raises(ExtensionError, match="extension 'packages'; did you mean packaged[?]"):
        extension_files.load(["packages"])
    file = written(tmp_path, 'state("mine", default=list)')
    said = rf"the state 'mine' \({file}\) and the state 'mine' \(packaged\) both have the name"
    with pytest.raises(ExtensionError, match=said):
        extension_files.load(["packaged", file])
