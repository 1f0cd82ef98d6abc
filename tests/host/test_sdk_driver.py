"""The user-space driver, against a controller that the test plays."""

import itertools
import os
import signal
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import potash.sdk
from potash.sdk import (
    CommandFailed,
    CommandTimeout,
    Device,
    DeviceGone,
    DeviceMisbehaved,
    DeviceNotFound,
    InvalidRequest,
    PotashError,
)
from pyvfio_user.server import Server
from support.interrupting import interrupted_at
from support.played_controller import CDW10, CDW11, NSID, PRP1, PRP2, PlayedController, config_space
from support.vfio_user import open_descriptors, serving, socket_path

PAGE = 4096
FLUSH, WRITE, READ = 0x00, 0x01, 0x02


@contextmanager
def driving(played: PlayedController, folder: Path, *, queue_depth: int = 1) -> Iterator[Device]:
    """A device whose controller is `played`."""
    path = socket_path(folder)
    with (
        Server(path, played) as server,
        serving(server),
        potash.sdk.open(f"vfio-user:{path}", timeout=5.0, queue_depth=queue_depth) as device,
    ):
        yield device


def commands(played: PlayedController) -> list[tuple[int, ...]]:
    """What came after the three commands that the driver starts with."""
    return played.entries_seen[3:]


def read(device: Device, pages: int) -> bytes:
    return device.io(READ, nsid=1, cdw10=5, cdw12=pages - 1, data_in_length=pages * PAGE).data


def test_the_controller_is_brought_up_in_the_standards_order(tmp_path: Path) -> None:
    played = PlayedController()
    with driving(played, tmp_path):
        wanted = [
            ("config", 0x10, (1 << 64) - 1),  # size BAR 0
            ("config", 0x10, 0xFE00_0000),
            ("config", 0x04, 0x6),  # memory space, bus master
            ("config", 0x42, 0x8000),  # MSI-X enable
            ("bar", 0x14, 0),
            ("bar", 0x24, 0x0007_0007),
            ("bar", 0x28, 0x1_0000_0000),
            ("bar", 0x30, 0x1_0000_4000),
            ("bar", 0x14, 0x0046_0001),
        ]
        assert played.log[: len(wanted)] == wanted
        assert played.resets == 1
        assert played.lines.enabled(2, 0)
        assert played.lines.enabled(2, 1)


def test_one_io_queue_pair_with_its_own_vector_is_made(tmp_path: Path) -> None:
    played = PlayedController()
    with driving(played, tmp_path):
        features, cq, sq = played.entries_seen
    assert (features[0], features[CDW10], features[CDW11]) == (0x09, 7, 0)
    assert (cq[0], cq[CDW10], cq[CDW11]) == (0x05, 0x0007_0001, 0x0001_0003)
    assert (sq[0], sq[CDW10], sq[CDW11]) == (0x01, 0x0007_0001, 0x0001_0001)
    assert len({cq[PRP1], sq[PRP1], 0x1_0000_0000, 0x1_0000_4000}) == 4


def test_a_device_with_one_vector_uses_it_for_both_queues(tmp_path: Path) -> None:
    played = PlayedController(vectors=1)
    played.content = bytes(PAGE)
    with driving(played, tmp_path) as device:
        assert read(device, 1) == bytes(PAGE)


@pytest.mark.parametrize("pages", [1, 2, 3, 9, 256])
def test_data_moves_both_ways_through_prps(pages: int, tmp_path: Path) -> None:
    played = PlayedController()
    played.content = os.urandom(pages * PAGE)
    sent = os.urandom(pages * PAGE)
    with driving(played, tmp_path) as device:
        assert read(device, pages) == played.content
        device.io(WRITE, nsid=1, cdw12=pages - 1, data_out=sent)
        assert played.written == [sent]


def test_a_command_without_data_names_no_memory(tmp_path: Path) -> None:
    played = PlayedController()
    with driving(played, tmp_path) as device:
        assert device.io(FLUSH, nsid=3).result == 0xC0DE
        (entry,) = commands(played)
    assert (entry[NSID], entry[PRP1], entry[PRP2]) == (3, 0, 0)


def test_dwords_and_namespace_arrive_as_they_were_given(tmp_path: Path) -> None:
    played = PlayedController()
    with driving(played, tmp_path) as device:
        device.admin(0xC0, nsid=9, cdw10=10, cdw11=11, cdw12=12, cdw13=13, cdw14=14, cdw15=15)
        (entry,) = commands(played)
    assert (entry[0], entry[NSID], entry[9:]) == (0xC0, 9, (10, 11, 12, 13, 14, 15))


def test_queues_wrap_and_the_phase_turns(tmp_path: Path) -> None:
    played = PlayedController(entries=4)
    with driving(played, tmp_path) as device:
        for number in range(11):
            device.io(FLUSH, nsid=1, cdw10=number)
    assert [entry[CDW10] for entry in commands(played)] == list(range(11))
    heads = [value for name, at, value in played.log if (name, at) == ("bar", 0x100C)]
    assert heads == [2, 0, 2, 0, 2]


def test_an_error_status_is_raised_and_the_next_command_works(tmp_path: Path) -> None:
    played = PlayedController()
    played.failing[FLUSH] = 0x4000 | 0x7C0  # Do Not Retry, vendor specific
    with driving(played, tmp_path) as device:
        with pytest.raises(CommandFailed) as caught:
            device.io(FLUSH, nsid=1)
        assert (caught.value.status, caught.value.dnr) == (0x7C0, True)
        played.failing.clear()
        device.io(FLUSH, nsid=1)


def test_a_command_that_does_not_complete_resets_the_controller(tmp_path: Path) -> None:
    played = PlayedController()
    played.silent.add(FLUSH)
    with driving(played, tmp_path) as device:
        with pytest.raises(CommandTimeout, match="in 0.05 s"):
            device.io(FLUSH, nsid=1, timeout=0.05)
        configurations = [value for name, at, value in played.log if (name, at) == ("bar", 0x14)]
        assert configurations[-2:] == [0x0046_0000, 0x0046_0001]
        played.silent.clear()
        device.io(FLUSH, nsid=1)


def test_a_fatal_status_ends_the_wait_for_a_command(tmp_path: Path) -> None:
    played = PlayedController()
    played.silent.add(FLUSH)
    with driving(played, tmp_path) as device:
        played.fail()
        with pytest.raises(DeviceMisbehaved, match="fatal"):
            device.io(FLUSH, nsid=1)
        played.silent.clear()
        device.reset()
        device.io(FLUSH, nsid=1)


def test_an_answer_to_another_command_is_the_devices_mistake(tmp_path: Path) -> None:
    played = PlayedController()
    with driving(played, tmp_path) as device:
        played.wrong_cid = True
        with pytest.raises(DeviceMisbehaved, match="was answered, but is not in flight"):
            device.io(FLUSH, nsid=1)


ABORTED_BY_HOST = 0x371


def test_commands_in_flight_complete_in_any_order(tmp_path: Path) -> None:
    played = PlayedController(entries=16)
    with driving(played, tmp_path, queue_depth=5) as device:
        played.silent |= {FLUSH, WRITE}
        flushes = [device.submit(FLUSH, nsid=1) for _ in range(2)]
        writes = [device.submit(WRITE, nsid=1, data_out=bytes(PAGE)) for _ in range(2)]
        assert device.admin(0xC0).result == 0xC0DE
        *seen, _ = commands(played)
        assert [entry[0] for entry in seen] == [FLUSH, FLUSH, WRITE, WRITE]
        assert len({entry[PRP1] for entry in seen[2:]}) == 2, "a buffer for each"
        pending = flushes + writes
        assert not any(command.done() for command in pending)
        for number in (2, 0, 3, 1):
            played.complete(1, seen[number], number)
            assert pending[number].result() == (number, b"")
            assert pending[number].done()
        assert [command.result().result for command in pending] == [0, 1, 2, 3]


def test_a_full_queue_waits_for_its_oldest_command(tmp_path: Path) -> None:
    played = PlayedController(entries=16)
    played.silent.add(FLUSH)
    with driving(played, tmp_path, queue_depth=2) as device:
        oldest, other = (device.submit(FLUSH, nsid=1, timeout=time) for time in (0.05, 5.0))
        assert device.submit(WRITE, nsid=1, data_out=bytes(PAGE)).result().result == 0xC0DE
        with pytest.raises(CommandTimeout, match="in 0.05 s"):
            oldest.result()
        with pytest.raises(CommandFailed) as caught:
            other.result()
        assert caught.value.status == ABORTED_BY_HOST
        assert other.done()


def test_a_queue_is_no_deeper_than_the_controller_allows(tmp_path: Path) -> None:
    for entries, depth in ((2, 1), (4, 1), (16, 7), (1024, 511), (4096, 1023)):
        with driving(PlayedController(entries=entries), tmp_path, queue_depth=1023) as device:
            assert device.transport.queue_depth == depth
    for depth in (0, 1024):
        with pytest.raises(InvalidRequest, match="queue depth is 1 to 1023"):
            potash.sdk.open("vfio-user:/nowhere", queue_depth=depth)


def test_many_commands_in_flight_wrap_the_queues(tmp_path: Path) -> None:
    played = PlayedController(entries=16)
    with driving(played, tmp_path, queue_depth=7) as device:
        sent = (device.submit(FLUSH, nsid=1, cdw10=number) for number in range(100))
        assert len(list(device.completions(sent))) == 100
    assert [entry[CDW10] for entry in commands(played)] == list(range(100))


def test_closing_ends_commands_in_flight(tmp_path: Path) -> None:
    played = PlayedController(entries=16)
    played.silent.add(FLUSH)
    with driving(played, tmp_path, queue_depth=2) as device:
        pending = device.submit(FLUSH, nsid=1)
    with pytest.raises(DeviceGone, match="closed"):
        pending.result()


AER = 0x0C


def test_an_event_comes_while_other_commands_come_and_go(tmp_path: Path) -> None:
    played = PlayedController(entries=4)
    played.silent.add(AER)
    with driving(played, tmp_path) as device:
        assert device.reports_events
        assert device.await_event(0) is None
        for number in range(9):
            device.admin(0xC0, cdw10=number)
        (request,) = [entry for entry in played.entries_seen if entry[0] == AER]
        played.complete(0, request, 0x00C0_0007)
        device.admin(0xC0)
        event = device.await_event(5.0)
        assert event is not None and (event.type, event.log_page) == (7, 0xC0)
        assert device.await_event(0.01) is None
    assert [entry[0] for entry in commands(played)].count(AER) == 2


def test_an_event_request_that_is_refused_is_no_event(tmp_path: Path) -> None:
    played = PlayedController()
    played.failing[AER] = 0x105  # Asynchronous Event Request Limit Exceeded
    with driving(played, tmp_path) as device:
        assert device.await_event(0.01) is None
        device.admin(0xC0)


def test_a_reset_forgets_the_event_request(tmp_path: Path) -> None:
    played = PlayedController()
    played.silent.add(AER)
    with driving(played, tmp_path) as device:
        assert device.await_event(0) is None
        device.reset()
        assert device.await_event(0) is None
        device.admin(0xC0)
        assert [entry[0] for entry in played.entries_seen].count(AER) == 2


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_takes_the_buffer_back_by_a_reset(
    kind: type[BaseException], tmp_path: Path
) -> None:
    """The device may still write into it for the command that nobody waits for any more."""
    played = PlayedController()
    played.silent.add(FLUSH)

    def interrupt(number: int, frame: object) -> None:
        raise kind

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with driving(played, tmp_path) as device:
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            with pytest.raises(kind):
                device.io(FLUSH, nsid=1)
            played.silent.clear()
            device.io(FLUSH, nsid=1)
    finally:
        signal.signal(signal.SIGALRM, before)
    configurations = [value for name, at, value in played.log if (name, at) == ("bar", 0x14)]
    assert 0x0046_0000 in configurations[2:-2]


def test_an_interrupt_anywhere_in_a_command_leaves_the_next_one_a_buffer(tmp_path: Path) -> None:
    packages = ("potash", "pyvfio_user")

    def commands() -> None:
        device.await_event(0)
        device.io(FLUSH, nsid=1)

    with driving(PlayedController(), tmp_path) as device:
        for instruction in itertools.count(step=7):
            if not interrupted_at(instruction, packages, commands):
                break
            device.io(FLUSH, nsid=1)
    assert instruction > 1000


def test_closing_shuts_the_controller_down_and_gives_everything_back(tmp_path: Path) -> None:
    played = PlayedController()
    before = open_descriptors()
    with Server(socket_path(tmp_path), played) as server, serving(server):
        device = potash.sdk.open(f"vfio-user:{server.path}")
        device.close()
        device.close()
        with pytest.raises(DeviceGone, match="closed"):
            device.io(FLUSH, nsid=1)
    assert open_descriptors() == before
    assert played.log[-5:] == [
        ("bar", 0x14, 0x0046_4001),  # normal shutdown
        ("bar", 0x14, 0x0046_0000),
        ("config", 0x42, 0),
        ("config", 0x04, 0),
        ("detached", 0, 0),
    ]


def test_a_device_can_be_opened_again(tmp_path: Path) -> None:
    played = PlayedController()
    with Server(socket_path(tmp_path), played) as server, serving(server):
        for _ in range(3):
            with potash.sdk.open(f"vfio-user:{server.path}") as device:
                device.io(FLUSH, nsid=1)


def test_a_server_that_dies_is_noticed_by_the_command_that_waits(tmp_path: Path) -> None:
    played = PlayedController()
    played.silent.add(FLUSH)
    before = open_descriptors()
    with Server(socket_path(tmp_path), played) as server:
        with serving(server):
            device = potash.sdk.open(f"vfio-user:{server.path}")
        closing = threading.Timer(0.05, server.close)
        closing.start()
        with pytest.raises(DeviceGone):
            device.io(FLUSH, nsid=1, timeout=5.0)
        closing.join()
        with pytest.raises(DeviceGone):
            device.reset()
        device.close()
    assert open_descriptors() == before


def test_nobody_at_the_socket_says_how_to_start_a_device(tmp_path: Path) -> None:
    before = open_descriptors()
    with pytest.raises(DeviceNotFound, match="potash serve --socket"):
        potash.sdk.open(f"vfio-user:{tmp_path / 'nothing'}")
    with pytest.raises(DeviceNotFound):
        potash.sdk.open("vfio-user:" + "x" * 200)
    assert open_descriptors() == before


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (b"", DeviceNotFound),
        (struct.pack("<HHIII", 9, 9, 16, 1, 0), DeviceMisbehaved),  # a reply to something else
        (struct.pack("<HHIII", 0, 1, 3, 1, 0), DeviceMisbehaved),  # shorter than its header
        (struct.pack("<HHIII", 0, 1, 16, 0x21, 22), DeviceMisbehaved),  # EINVAL
    ],
)
def test_something_else_at_the_socket_is_refused(
    answer: bytes, kind: type[PotashError], tmp_path: Path
) -> None:
    def answer_once() -> None:
        peer, _ = listener.accept()
        with peer:
            peer.recv(4096)
            peer.sendall(answer)

    before = open_descriptors()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(socket_path(tmp_path)))
        listener.listen()
        thread = threading.Thread(target=answer_once)
        thread.start()
        with pytest.raises(PotashError) as caught:
            potash.sdk.open(f"vfio-user:{socket_path(tmp_path)}")
        thread.join()
    assert type(caught.value) is kind
    assert open_descriptors() == before


def looping_config() -> bytearray:
    config = config_space(msix_id=0x05)
    config[0x41] = 0x50
    return config


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (config_space(class_code=0x010601), "class 010601h"),
        (config_space(msix_id=0x05), "no capability 11h"),
        (looping_config(), "no capability 11h"),
    ],
)
def test_a_function_that_is_not_nvme_is_refused(
    config: bytearray, message: str, tmp_path: Path
) -> None:
    with (
        pytest.raises(DeviceMisbehaved, match=message),
        driving(PlayedController(config), tmp_path),
    ):
        pass


def test_a_bar_that_contradicts_its_region_is_refused(tmp_path: Path) -> None:
    played = PlayedController()
    played.bar_mask = ~0xFFFF & (1 << 64) - 1
    with pytest.raises(DeviceMisbehaved, match="BAR 0 says 65536 bytes"), driving(played, tmp_path):
        pass


@pytest.mark.parametrize(
    ("cap", "message"),
    [
        (7 | 1 << 24, "NVM command set"),
        (7 | 1 << 24 | 1 << 37 | 1 << 48, "pages of 4096"),
        (7 | 1 << 24 | 1 << 37 | 15 << 32, "no room for the doorbells"),
    ],
)
def test_capabilities_that_the_driver_cannot_use_are_refused(
    cap: int, message: str, tmp_path: Path
) -> None:
    played = PlayedController()
    played.cap = cap
    with pytest.raises(DeviceMisbehaved, match=message), driving(played, tmp_path):
        pass


def test_a_controller_that_never_gets_ready_is_given_up(tmp_path: Path) -> None:
    played = PlayedController()
    played.never_ready = True
    before = open_descriptors()
    with pytest.raises(CommandTimeout, match="become ready in 0.5 s"), driving(played, tmp_path):
        pass
    assert open_descriptors() == before


def test_a_controller_that_fails_to_start_is_given_up(tmp_path: Path) -> None:
    played = PlayedController()
    played.fatal = True
    with pytest.raises(DeviceMisbehaved, match="failed to become ready"), driving(played, tmp_path):
        pass


def test_prps_are_the_figures(tmp_path: Path) -> None:
    """PRP2 is nothing, the second page, or a list of all pages but the first."""
    played = PlayedController()
    played.content = bytes(4 * PAGE)
    with driving(played, tmp_path) as device:
        for pages in (1, 2, 4):
            read(device, pages)
        one, two, four = commands(played)
        listed = struct.unpack("<3Q", played.memory.view(four[PRP2], 24, write=False))
    assert one[PRP2] == 0
    assert two[PRP2] == two[PRP1] + PAGE
    assert listed == tuple(four[PRP1] + number * PAGE for number in (1, 2, 3))
