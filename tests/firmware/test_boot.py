"""The device's process: what it waits for, and what becomes of it when the APU does not start."""

import errno
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from potash_device.media.sidecar import SIDECAR_SIZE, Sidecar
from potash_device.media.store import Media, MemoryMedia
from potash_firmware import boot
from potash_firmware.mailbox import ApuPort
from potash_firmware.mailbox.messages import Alive, Ping, Request, WriteBack
from potash_firmware.rpu.accelerators import apu_link
from potash_firmware.rpu.logs import health
from potash_firmware.rpu.persistence import SHUTDOWN
from potash_firmware.stop_signals import StopSignals
from pyvfio_user import server
from support.nvme_host import CC
from support.vfio_user import QEMU_VERSION, VERSION, RawClient, command, open_descriptors


class NoProcess:
    """Stands for an APU's process that lives until the test says otherwise."""

    pid = 1

    def __init__(self, *_: Any, pass_fds: tuple[int, ...], **__: Any) -> None:
        self.mailbox = os.dup(pass_fds[0])
        self.killed = self.gone = False

    def kill(self) -> None:
        self.killed = True

    def poll(self) -> int | None:
        return -9 if self.gone else None

    def wait(self) -> int:
        assert self.gone, "the device's loop waits for a process that does not end"
        return -9

    def die(self) -> None:
        os.close(self.mailbox)


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> list[NoProcess]:
    started: list[NoProcess] = []

    def popen(*arguments: Any, **options: Any) -> NoProcess:
        started.append(NoProcess(*arguments, **options))
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", popen)
    return started


@pytest.fixture
def device(tmp_path: Path, processes: list[NoProcess]) -> Iterator[boot.Device]:
    media = MemoryMedia.create(1 << 20)
    with boot.Device(tmp_path / "s", {1: media}, media) as device:
        yield device
        for process in processes:
            process.gone = True
    media.close()


def test_an_apu_that_knows_other_namespaces_is_replaced_without_waiting(
    device: boot.Device, processes: list[NoProcess]
) -> None:
    device.rpu.controller.namespaces.inventory.version += 1
    device.run_once(0)
    assert processes[0].killed
    assert len(processes) == 1
    processes[0].gone = True
    run(device, 0.1)
    assert len(processes) == 2


def test_an_apu_whose_media_cannot_be_opened_is_tried_again(
    device: boot.Device, processes: list[NoProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: Media) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    device.rpu.controller.namespaces.inventory.version += 1
    processes[0].gone = True
    with monkeypatch.context() as patch:
        patch.setattr(MemoryMedia, "reader", refuse)
        assert run(device, 0.3) < 20
    assert processes[0].killed and len(processes) == 1
    run(device, 1.0)
    assert len(processes) == 2 and device.link.port is not None


def run(device: boot.Device, seconds: float) -> int:
    """Step the device for a while; how many steps it took."""
    end, steps = time.monotonic() + seconds, 0
    while (left := end - time.monotonic()) > 0:
        device.run_once(timeout=left)
        steps += 1
    return steps


def test_an_apu_that_is_slow_to_die_stops_nothing(
    device: boot.Device, processes: list[NoProcess]
) -> None:
    """One that waits for a disk is killed at once, and gone when the disk answers."""
    processes[0].die()
    run(device, 0.2)
    assert processes[0].killed
    assert len(processes) == 1
    processes[0].gone = True
    run(device, 0.2)
    assert len(processes) == 2
    assert device.link.port is not None


def test_an_apu_that_cannot_be_started_is_tried_again(
    device: boot.Device, processes: list[NoProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> NoProcess:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    processes[0].die()
    processes[0].gone = True
    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "Popen", refuse)
        run(device, 0.1)
        before = open_descriptors()
        run(device, 0.3)
        assert open_descriptors() == before
    run(device, 1.0)
    assert len(processes) == 2


def test_a_device_whose_first_apu_does_not_start_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> NoProcess:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(subprocess, "Popen", refuse)
    media = MemoryMedia.create(1 << 20)
    before = open_descriptors()
    with pytest.raises(OSError), boot.Device(tmp_path / "s", {1: media}, media):
        pass
    assert open_descriptors() == before
    assert not (tmp_path / "s").exists()
    media.close()


def test_a_device_that_waits_for_a_write_back_sleeps(
    device: boot.Device, processes: list[NoProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    read, write = os.pipe()
    monkeypatch.setattr(
        device.board.storage.media[1], "write_from", lambda *_: select.select([read], (), ())
    )
    device.rpu.controller.write_backs.start(WriteBack(1, 0, 0, ((1, 0, 4096),)))
    processes[0].die()
    processes[0].gone = True
    run(device, 0.1)
    assert run(device, 0.3) < 10
    os.write(write, b"x")
    run(device, 0.5)
    assert len(processes) == 2
    os.close(read)
    os.close(write)


def test_host_writes_wait_in_the_socket_when_there_are_too_many(device: boot.Device) -> None:
    class Flood:
        """A client that has always one more message, each as long as the register space."""

        def __init__(self) -> None:
            self.messages = 0

        def drain(self, limit: int) -> int:
            for _ in range(limit):
                device.board.region_write(0, 0, bytes(0x1000))
                device.board.region_write(0, CC, bytes(4))
                self.messages += 1
            return limit

    flood = Flood()
    server = device.server
    device.server.drain = flood.drain  # type: ignore[method-assign]  # a client at full speed
    try:
        most = 0
        for _ in range(300):
            device.run_once(timeout=0.0)
            most = max(most, len(device.board.registers.host_writes))
    finally:
        del server.drain
    assert flood.messages > boot.MESSAGES_PER_PASS
    assert most < 2 * boot.MESSAGES_PER_PASS * 1025


def test_the_end_waits_for_media_work_before_the_buffers_it_reads_are_gone(
    tmp_path: Path, processes: list[NoProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job's output is on its way from an arena to its blocks when the device ends."""
    media, begun, may_go_on = MemoryMedia.create(1 << 20), threading.Event(), threading.Event()
    written: list[bytes] = []

    def write_from(views: list[memoryview], offset: int) -> None:
        begun.set()
        assert may_go_on.wait(10)
        written.append(bytes(views[0]))

    monkeypatch.setattr(media, "write_from", write_from)
    with boot.Device(tmp_path / "s", {1: media}, media) as device:
        processes[0].gone = True
        device.link.buffers.arena(0)[:4096] = b"o" * 4096
        device.rpu.controller.write_backs.start(WriteBack(1, 0, 0, ((1, 0, 4096),)))
        assert begun.wait(10)
        threading.Timer(0.05, may_go_on.set).start()
    assert written == [b"o" * 4096]
    media.close()


def ended(sidecar: Media) -> object:
    """How the sidecar says that the device has ended: well or not."""
    remembered = Sidecar(sidecar)
    remembered.load()
    return remembered.get(SHUTDOWN)


def test_a_sidecar_that_cannot_be_used_is_as_an_empty_one(
    tmp_path: Path,
    processes: list[NoProcess],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    media, sidecar = MemoryMedia.create(1 << 20), MemoryMedia.create(SIDECAR_SIZE)
    earlier = Sidecar(sidecar)
    earlier.put(health.SECTION, {"reads": 5})
    earlier.save()
    load = health.Health.load

    def fail(self: health.Health, saved: health.SavedHealth) -> None:
        load(self, saved)
        raise OverflowError

    monkeypatch.setattr(health.Health, "load", fail)
    with boot.Device(tmp_path / "s", {1: media}, media, sidecar=sidecar):
        processes[-1].gone = True
    assert "counters and saved features start anew" in caplog.text
    assert ended(sidecar) is True
    media.close()


def test_an_end_is_a_clean_one_unless_something_went_wrong(
    tmp_path: Path, processes: list[NoProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    media, sidecar = MemoryMedia.create(1 << 20), MemoryMedia.create(SIDECAR_SIZE)

    def run(error: Exception | None = None) -> None:
        with boot.Device(tmp_path / "s", {1: media}, media, sidecar=sidecar):
            processes[-1].gone = True
            assert ended(sidecar) is False
            if error is not None:
                raise error

    run()
    assert ended(sidecar) is True
    with pytest.raises(RuntimeError):
        run(RuntimeError())
    assert ended(sidecar) is False
    run()
    assert ended(sidecar) is True

    def fdatasync(fd: int) -> None:
        if fd == media.fd:
            raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(os, "fdatasync", fdatasync)
    run()
    assert ended(sidecar) is False
    for one in (media, sidecar):
        one.close()


def test_the_loop_wakes_for_the_counters_record(
    device: boot.Device, processes: list[NoProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    persistence = device.rpu.controller.persistence
    device.rpu.controller.health.count_read(512)
    monkeypatch.setattr(persistence, "_due", time.monotonic() + 0.1)
    saved = []
    real = persistence.sidecar.save

    def save() -> None:
        saved.append(time.monotonic())
        real()

    monkeypatch.setattr(persistence.sidecar, "save", save)
    steps = run(device, 0.5)
    assert len(saved) == 1
    assert steps < 10


def test_a_drive_that_no_host_has_used_is_stopped_and_saved(device: boot.Device) -> None:
    assert device.save()
    assert device.rpu.migration.stopped


def test_a_hang_up_that_is_ignored_stays_ignored() -> None:
    """As under nohup(1)."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopSignals() as stop:
            signal.raise_signal(signal.SIGHUP)
            assert select.select([stop], [], [], 0)[0] == []
            signal.raise_signal(signal.SIGTERM)
            assert select.select([stop], [], [], 0)[0] == [stop]
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_client_that_says_nothing_is_dropped_and_the_next_one_served(
    device: boot.Device, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server, "NEGOTIATION_TIME", 0.2)
    with RawClient(device.server) as silent, RawClient(device.server) as other:
        while not other.disconnected:
            device.run_once(timeout=0)
        assert not silent.disconnected
        assert "a client is refused: there is a client already" in caplog.text
        limits, wait = [], device._waiting.wait

        def recorded(waiting: Any, limit: float) -> Any:
            limits.append(limit)
            return wait(waiting, limit)

        monkeypatch.setattr(device._waiting, "wait", recorded)
        while not silent.disconnected:
            device.run_once(timeout=5)  # which the end of its time cuts short
        assert max(limits) <= 0.2
    with RawClient(device.server) as client:
        client.send(command(VERSION, QEMU_VERSION))
        while not client.replies():
            device.run_once(timeout=1)


def test_an_apu_that_hangs_is_ended_and_another_one_started(
    device: boot.Device, processes: list[NoProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apu_link, "PATIENCE", 0.1)
    with ApuPort.adopt(os.dup(processes[0].mailbox)) as apu:
        apu.send(Alive())
        run(device, 0.3)
        assert not processes[0].killed  # nothing has been asked
        ask(device)
        run(device, 0.15)
        assert [type(apu.receive()) for _ in range(2)] == [Request, Ping]
        apu.send(Alive(1))
        run(device, 0.15)
        assert not processes[0].killed
        apu.receive()
        run(device, 0.2)
        assert processes[0].killed
        assert device.link.in_flight == 0  # it has failed
    processes[0].die()
    processes[0].gone = True
    run(device, 0.2)
    assert len(processes) == 2


def ask(device: boot.Device) -> int:
    """Have the device's link ask the APU something; its tag."""
    slot = apu_link.Slot(0, lambda _: None)
    return device.link.request(slot, admin=True, opcode=0xC6, nsid=0, cdws=(0,) * 6, length=0)


def test_an_apu_that_has_not_started_yet_gets_more_time(
    device: boot.Device, processes: list[NoProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apu_link, "PATIENCE", 0.02)
    monkeypatch.setattr(apu_link, "START_PATIENCE", 0.3)
    ask(device)
    run(device, 0.2)
    assert not processes[0].killed
    run(device, 0.3)
    assert processes[0].killed
