"""Reservations of a device: the page's program, the SDK, and what a kill leaves."""

import contextlib
import copy
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from nvme_spec.logs import AsyncEvent
from nvme_spec.reservations import ReservationType
from potash import sdk
from potash.sdk import CommandFailed, Device, DeviceGone, InvalidRequest
from potash.sdk.reservations import Registrant, Report
from potash.testing import booted_device
from potash.vm.drive import device_process
from support.docs import blocks, run_python
from support.reservation_model import ReservationModel

HOSTS = tuple(b"host %03d" % number * 2 for number in range(4))
WRITE_EXCLUSIVE, ALL = ReservationType(1), ReservationType(6)


@pytest.fixture
def target(tmp_path: Path) -> Iterator[str]:
    with device_process(tmp_path / "S", "--size", "1M", "--kv-namespace", "1M"):
        yield f"vfio-user:{tmp_path / 'S'}"


def test_the_program_of_the_page(target: str) -> None:
    code = blocks("reservations.md", "python")[0]
    assert run_python(code, replace={"vfio-user:S": target}).splitlines() == [
        "Registrant(host=b'the first host..', key=1, holds=True, controllers=(0,))",
        "Write failed: Reservation Conflict (SCT 0h, SC 83h)",
    ]


def test_reservations_in_python(target: str) -> None:
    with sdk.open(target) as device:
        reservations = device.reservations()
        assert reservations.report() == Report(0, None, False, ())
        with pytest.raises(InvalidRequest, match="8 or 16 bytes"):
            device.set_host_identifier(b"short")
        device.set_host_identifier(b"8 bytes!")
        for key in (-1, 1 << 64):
            with pytest.raises(InvalidRequest, match="64 bits"):
                reservations.register(key)
        reservations.register(5, persist=True)
        reservations.replace(5, 6)
        reservations.replace(None, 7)
        reservations.acquire(7, ALL)
        device.set_host_identifier(b"another!")
        reservations.replace(None, 8)
        assert reservations.report() == Report(
            4,
            ALL,
            True,
            (
                Registrant(b"8 bytes!", 7, True, ()),
                Registrant(b"another!", 8, True, (0,)),
            ),
        )
        with pytest.raises(CommandFailed, match="Host Identifier Inconsistent Format"):
            device.set_host_identifier(bytes(range(16)))
        reservations.preempt(8, 0, WRITE_EXCLUSIVE)
        reservations.unregister(None)
        assert reservations.report() == Report(6, None, True, ())
        values = device.kv_namespace()
        of_values = device.reservations(values.nsid)
        of_values.register(1)
        of_values.acquire(1, ReservationType.EXCLUSIVE_ACCESS)
        values[b"k"] = b"v"
        device.set_host_identifier(b"8 bytes!")
        with pytest.raises(CommandFailed, match="Retrieve failed: Reservation Conflict"):
            values[b"k"]
        with pytest.raises(CommandFailed, match="Reservation release failed: Reservation"):
            of_values.release(1, ReservationType.EXCLUSIVE_ACCESS)
        # More registrants than the first request of a report has room for.
        device.set_host_identifier(b"another!")
        of_values.clear(1)
        for number in range(1, 100):
            device.set_host_identifier(number.to_bytes(16, "little"))
            reservations.register(number)
        found = reservations.report().registrants
        assert [registrant.key for registrant in found] == [*range(1, 100)]


def test_a_host_of_another_controller_is_notified() -> None:
    """While it waits for nothing but the event, and while nothing else happens on the drive."""
    with booted_device(controllers=2, size="1M") as device:
        for waiting, other in ((0, 1), (1, 0)):
            victim, winner = device.controllers[waiting], device.controllers[other]
            victim.reservations().replace(None, 1)
            winner.reservations().replace(None, 2)
            with ThreadPoolExecutor() as pool:
                event = pool.submit(victim.await_event, 20)
                time.sleep(0.2)
                winner.reservations().preempt(2, 1, WRITE_EXCLUSIVE)
                assert event.result() == AsyncEvent(type=6, info=0, log_page=0x80)
            assert victim.log_page(0x80, 64)[8:10] == bytes([1, 0])
            assert [each.key for each in victim.reservations().report().registrants] == [2]


class Hosts:
    """Four hosts that change a reservation at random until the device is gone."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.models = [ReservationModel()]
        """What there may be: what was acknowledged, and what a command under way makes of it."""

    def change_until_gone(self, device: Device) -> None:
        with contextlib.suppress(DeviceGone):
            while True:
                number = self.random.randrange(4)
                device.set_host_identifier(HOSTS[number])
                for _ in range(self.random.randrange(1, 5)):
                    self.change(device, number)

    def change(self, device: Device, number: int) -> None:
        side, model = device.reservations(), self.models[0]
        key, other = self.random.choices((1, 2, 3), k=2)
        key = model.keys.get(number, key)
        rtype = ReservationType(self.random.randrange(1, 7))
        persist = self.random.choice((True, True, True, False))
        changes: dict[Callable[[], None], Callable[[ReservationModel], int]] = {
            lambda: side.register(key, persist=persist): (
                lambda model: model.register(number, 0, 0, key, persistence=2 + persist)
            ),
            lambda: side.replace(None, other): (
                lambda model: model.register(number, 2, 0, other, ignore=1)
            ),
            lambda: side.unregister(key): lambda model: model.register(number, 1, key, 0),
            lambda: side.acquire(key, rtype): lambda model: model.acquire(number, 0, key, 0, rtype),
            lambda: side.preempt(key, other, rtype, abort=persist): (
                lambda model: model.acquire(number, 1, key, other, rtype)
            ),
            lambda: side.release(key, rtype): lambda model: model.release(number, 0, key, rtype),
            lambda: side.clear(key): lambda model: model.release(number, 1, key, 0),
        }
        weights = (4, 2, 2, 6, 3, 2, 1)
        (command,) = self.random.choices([*changes], weights)
        after = copy.deepcopy(model)
        expected = changes[command](after)
        self.models = [model, after]
        try:
            command()
            status = 0
        except CommandFailed as error:
            status = error.status
        assert status == expected
        self.models = [after]

    def check(self, device: Device) -> None:
        """Verify what is there after a kill, and go on from that."""
        found = device.reservations().report()
        listed = {each.host: (each.key, each.holds) for each in found.registrants}
        possible = []
        for model in self.models:
            model.power_loss()
            holders = model.holders()
            keys = {HOSTS[host]: (key, host in holders) for host, key in model.keys.items()}
            possible.append((model.generation, model.type, model.persists, keys))
        seen = (found.generation, found.type or 0, found.persists, listed)
        assert seen in possible
        self.models = [self.models[possible.index(seen)]]


@pytest.mark.parametrize("kills", [2, pytest.param(100, marks=pytest.mark.slow)])
def test_a_killed_device_loses_no_reservation_that_persists(tmp_path: Path, kills: int) -> None:
    socket, hosts = tmp_path / "s", Hosts(kills)
    options = ["--media", str(tmp_path / "drive"), "--size", "1M"]
    for _ in range(kills):
        with (
            device_process(socket, *options) as process,
            sdk.open(f"vfio-user:{socket}") as device,
        ):
            hosts.check(device)
            changing = threading.Thread(target=hosts.change_until_gone, args=[device])
            changing.start()
            time.sleep(0.05 + hosts.random.random() / 5)
            process.send_signal(signal.SIGKILL)
            changing.join()
            process.wait()
    with device_process(socket, *options), sdk.open(f"vfio-user:{socket}") as device:
        hosts.check(device)
