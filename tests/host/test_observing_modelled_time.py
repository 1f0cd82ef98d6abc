"""What a drive of modelled time says of it: log page, SMART, status, metrics, `top` and trace."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from csd_spec.placement import HandleCounters, PlacementLog, PlacementLogError
from csd_spec.timing import SIZE, TimingLog, TimingLogError
from csd_spec.traffic import TimedCompletion, TrafficLog, TrafficLogError
from nvme_spec.logs import CriticalWarning
from potash import sdk, timing
from potash.observing import prometheus, status
from potash.observing.rates import between
from potash.observing.screen import lines
from potash.sdk import Device
from potash.sdk.errors import DeviceMisbehaved
from potash.vm.drive import serving
from potash_device.flash.scaling import scaled
from potash_firmware.snapshot import Snapshot
from support.in_process import potash
from support.prometheus import parse, value
from support.tracing import Viewed

SIZE_OF_DRIVE = 4 << 20
FRAIL = """
base = "z-nand"
channels = 1
dies = 1
blocks = 100
pages = 16
planes = 1
page_bytes = 4096
program_pages = 1
streams = 1
buffer_bytes = 65_536
capacity = 4_194_304
cycles = 6
"""
PAGES = 100


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[Path, timing.Drive]]:
    """A drive that does not live long, as a socket, and its model."""
    profile = tmp_path / "frail.toml"
    profile.write_text(FRAIL)
    model = timing.Drive(scaled(timing.profile(str(profile)), SIZE_OF_DRIVE))
    options = ("--time", "modelled", "--drive", str(profile), "--size", str(SIZE_OF_DRIVE))
    with serving(*options) as socket:
        yield socket, model


def write(device: Device, pages: int) -> None:
    for first in range(0, pages, PAGES):
        device.namespace(1).write(first % 900, bytes(4096 * PAGES))


def test_the_log_page_and_smart_say_what_the_model_counts_until_the_drive_is_worn(
    served: tuple[Path, timing.Drive],
) -> None:
    socket, model = served
    with sdk.open(f"vfio-user:{socket}") as device:
        fresh = device.timing_log()
        assert (fresh.modelled, fresh.factor, fresh.host, fresh.erases) == (1, 1, 0, 0)
        assert (fresh.available_spare, fresh.superblocks) == (100, model.profile.blocks)
        write(device, 4000)
        for first in range(0, 4000, PAGES):
            model.submit(10**12 + first * 10**9, timing.Op.WRITE, first % 900, PAGES)
        log, smart = device.timing_log(), device.smart_log()
        assert log.host == model.counters.host == 4000
        assert log.commands >= 4000 // PAGES
        assert log.late_p50_ns <= log.late_p99_ns <= log.late_most_ns <= log.late_ns
        assert log.guest_ns > fresh.guest_ns and log.frozen_ns == 0
        assert log.erases_least <= log.erases_p50 <= log.erases_p99 <= log.erases_most
        assert 0 < smart.percentage_used == log.percentage_used == model.wear.percentage_used
        assert log.die_ns >= log.programs * model.profile.program_ns[0]
        for _ in range(40):
            try:
                write(device, 1000)
            except sdk.CommandFailed as error:
                assert "write protected" in str(error).lower()
                break
        smart, log = device.smart_log(), device.timing_log()
        assert (log.worn, smart.available_spare) == (1, 0)
        warned = CriticalWarning.SPARE_BELOW_THRESHOLD | CriticalWarning.READ_ONLY
        assert smart.critical_warning & warned == warned
        assert log.retired > 0 and smart.percentage_used >= 50


def test_without_modelled_time_the_page_is_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving("--size", "16M") as socket, sdk.open(f"vfio-user:{socket}") as device:
        assert device.timing_log() == TimingLog()
        size = len(device.read(0, 1))
        before = device.traffic()
        device.read(0, 3)
        device.write(0, bytes(size))
        expected = TrafficLog(commands=2, to_host=3 * size, from_host=size)
        assert device.traffic(before) == expected
        assert status.ask(status.status_socket(str(socket)))["modelled"] is None
        # And a page of another layout is refused.
        monkeypatch.setattr(Device, "log_page", lambda *_: bytes(SIZE))
        with pytest.raises(DeviceMisbehaved):
            device.timing_log()


def test_the_page_is_decoded_from_its_bytes() -> None:
    log = TimingLog(modelled=1, host=4, relocated=2, hits=3, misses=1, erases_most=7)
    assert len(log.encode()) == SIZE == 512
    assert TimingLog.decode(log.encode() + bytes(300)) == log
    # The page of version 1.0 had the first fields.
    assert TimingLog.decode(log.encode()[:256]) == log
    assert TimingLog.decode(log._replace(folded=5).encode()[:256]) == log
    assert (log.write_amplification, log.cache_hits) == (1.5, 0.75)
    for wrong in (b"", bytes(SIZE), log.encode()[:255]):
        with pytest.raises(TimingLogError):
            TimingLog.decode(wrong)


def test_status_metrics_and_top_agree(served: tuple[Path, timing.Drive]) -> None:
    socket, model = served
    place = status.status_socket(str(socket))
    with sdk.open(f"vfio-user:{socket}") as device:
        before = status.ask(place)
        write(device, 1000)
        after: Snapshot = status.ask(place)
        found = after["modelled"]
        assert found is not None
        assert found["pages"]["host"] == 1000
        late = found["lateness"]
        assert sum(one["commands"] for one in late["buckets"]) <= late["commands"]
        busy = between(before, after)["busy"]
        assert set(busy) == {"dies", "channels", "link", "cores"} and busy["dies"] > 0
        families = parse(prometheus.text(after).decode())
        assert value(families, "potash_flash_pages_total", reason="host") == 1000
        assert value(families, "potash_resources", resource="dies") == 1
        assert value(families, "potash_lateness_seconds_bucket", le="+Inf") == late["commands"]
        states = [
            value(families, "potash_superblocks", state=one) for one in ("free", "used", "retired")
        ]
        assert sum(states) == model.profile.blocks
        shown = "\n".join(lines(place, after, between(before, after)))
        assert "modelled time:" in shown and "write amplification 1.00" in shown
    command = potash("top", socket, "--once", "--json", "--interval", 0.05)
    report = json.loads(command.stdout)["modelled"]
    assert report["pages"]["host"] == 1000
    assert report["wear"]["percentage_used"] == found["wear"]["percentage_used"]


def test_placement_handles_are_on_the_page_in_metrics_and_in_top(tmp_path: Path) -> None:
    profile = tmp_path / "frail.toml"
    profile.write_text(FRAIL.replace("cycles = 6", "").replace("blocks = 100", "blocks = 78"))
    options = ("--time", "modelled", "--drive", str(profile), "--size", str(SIZE_OF_DRIVE))
    with serving(*options, "--fdp", "2") as socket, sdk.open(f"vfio-user:{socket}") as device:
        write(device, 900)
        random = Random(1)
        for _ in range(1100):
            device.namespace(1).write(random.randrange(900), bytes(4096))
        used, unused = device.placement_log().handles
        assert (used.host, unused) == (2000 * 4096, HandleCounters())
        counts = device.timing_log()
        assert (used.moved, used.padding) == (counts.relocated * 4096, counts.padding * 4096)
        assert used.media == used.host + used.moved + used.padding
        assert used.write_amplification == counts.write_amplification > 1
        place = status.status_socket(str(socket))
        found: Snapshot = status.ask(place)
        assert [one["media"] for one in found["placement"]] == [used.media, 0]
        families = parse(prometheus.text(found).decode())
        assert value(families, "potash_placement_host_bytes_total", handle="0") == used.host
        moved = value(families, "potash_placement_media_bytes_total", handle="0", reason="moved")
        assert moved == used.moved
        shown = lines(place, found, between(found, found))
        assert shown[-1].split()[:3] == ["0", "7.8", "MiB"]
        assert shown[-1].endswith(f"{used.write_amplification:.2f}")
        top = potash("top", socket, "--once", "--json", "--interval", 0.05)
        assert json.loads(top.stdout)["placement"] == found["placement"]


def test_values_and_the_pages_of_flash_for_them_are_in_metrics_and_in_top(tmp_path: Path) -> None:
    options = ("--time", "modelled", "--drive", "z-nand", "--size", "64M", "--kv-namespace", "8M")
    with (
        serving(*options, "--kv-index", "flash") as socket,
        sdk.open(f"vfio-user:{socket}") as device,
    ):
        values = device.kv_namespace()
        values.store_all((b"%d" % number, bytes(1000)) for number in range(100))
        values[b"long"] = bytes(3 * 4096)
        found: Snapshot = status.ask(status.status_socket(str(socket)))
        assert found["modelled"] is not None
        stored, pages = 100 * 1000 + 3 * 4096, 100 // 4 - 1 + 3  # the last one is in memory
        assert found["modelled"]["values"] == {
            "stored": stored,
            "written": pages * 4096,
            "moved": 0,
            "index": 101 * 4096,
            "write_amplification": (pages + 101) * 4096 / stored,
        }
        assert device.timing_log().host == pages + 101
        families = parse(prometheus.text(found).decode())
        assert value(families, "potash_values_stored_bytes_total") == stored
        flash = "potash_values_flash_bytes_total"
        assert value(families, flash, kind="log") == pages * 4096
        assert value(families, flash, kind="index") == 101 * 4096
        top = json.loads(potash("top", socket, "--once", "--json", "--interval", 0.05).stdout)
        assert top["modelled"]["values"] == found["modelled"]["values"]


def test_a_page_of_placement_handles_is_what_was_encoded_or_refused() -> None:
    page = PlacementLog(count=2, handles=(HandleCounters(1, 3, 2), HandleCounters()))
    assert PlacementLog.decode(page.encode() + bytes(100)) == page
    assert [one.write_amplification for one in page.handles] == [3, 0]
    for wrong in (b"", bytes(16), page.encode()[:15], page.encode()[:-1]):
        with pytest.raises(PlacementLogError):
            PlacementLog.decode(wrong)


def test_the_trace_has_the_modelled_drive_as_a_process(tmp_path: Path) -> None:
    out = tmp_path / "trace.json"
    slow = tmp_path / "slow.toml"
    slow.write_text('base = "tlc"\nsubmission_ns = 3_000_000\n')
    options = ("--time", "modelled", "--drive", str(slow), "--size", "64M", "--trace", str(out))
    with serving(*options) as socket, sdk.open(f"vfio-user:{socket}") as device:
        device.namespace(1).write(0, bytes(4096))
    found = Viewed(out)
    modelled = found.one("write", "drive (modelled)", "requests (1)")
    wall = found.one("write", "device", "queue 1")
    assert wall.begin <= modelled.begin < modelled.end <= wall.end
    assert modelled.end - modelled.begin > 3000  # microseconds


def test_a_traffic_log_is_what_was_encoded_or_refused() -> None:
    completed = [TimedCompletion(arrived=at, completed=2 * at) for at in range(1, 5)]
    early = TrafficLog(commands=5, to_host=7, moved=1, completed=2, completions=(*completed[:2],))
    late = early._replace(commands=9, completed=4, completions=(*completed,))
    assert TrafficLog.decode(late.encode() + bytes(100)) == late
    added = late.since(early)
    assert added == TrafficLog(commands=4, completed=2, completions=(*completed[2:],))
    assert (added.modelled, early.link) == (8 - 3, 7)
    for wrong in (b"", bytes(64), late.encode()[:63], b"\2" + late.encode()[1:]):
        with pytest.raises(TrafficLogError):
            TrafficLog.decode(wrong)
