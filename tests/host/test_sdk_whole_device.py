"""The SDK against a whole device: registers, firmware, accelerators, all in their own processes."""

import errno
import os
import resource
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import potash.sdk
from csd_spec.status import StatusId, VendorStatus
from nvme_spec.features import FeatureId
from nvme_spec.logs import LogPage, SmartLog
from nvme_spec.opcodes import AdminOpcode
from nvme_spec.status import Status
from potash.sdk import CommandFailed, CommandTimeout, Device, DeviceGone, DeviceNotFound, JobFailed
from potash.vm.drive import device_process
from pyvfio_user.channel import VfioUserError
from support.vfio_user import open_descriptors

MIB = 1 << 20
BLOCK = 4096

SMALL = ("--size", "64M")


@pytest.fixture
def device(socket: Path) -> Iterator[Device]:
    with potash.sdk.open(f"vfio-user:{socket}", timeout=10.0) as opened:
        yield opened


def test_a_device_says_what_it_is(device: Device) -> None:
    controller = device.identify()
    assert controller.vid == 0x1B96
    assert (controller.ver, controller.sqes, controller.cqes) == (0x0002_0000, 0x66, 0x44)
    assert device.active_namespaces() == [1]
    assert (device.block_size, device.capacity) == (BLOCK, 64 * MIB)


@pytest.mark.parametrize("blocks", [1, 2, 3, 127, 128, 129, 300])
def test_blocks_come_back_as_they_were_written(device: Device, blocks: int) -> None:
    data = os.urandom(blocks * BLOCK)
    device.write(1000, data)
    assert device.read(1000, blocks) == data


def test_what_was_written_is_there_after_a_reset_and_for_the_next_client(socket: Path) -> None:
    data = os.urandom(2 * BLOCK)
    with potash.sdk.open(f"vfio-user:{socket}") as first:
        first.write(7, data)
        first.flush()
        first.reset()
        assert first.read(7, 2) == data
    with potash.sdk.open(f"vfio-user:{socket}") as second:
        assert second.read(7, 2) == data


def test_a_block_past_the_end_does_not_exist(device: Device) -> None:
    with pytest.raises(CommandFailed) as caught:
        device.read(device.capacity // BLOCK, 1)
    assert caught.value.status == Status.LBA_OUT_OF_RANGE
    assert caught.value.dnr
    assert device.read(0, 1)


def test_several_hundred_commands_go_round_the_queues(device: Device) -> None:
    for number in range(300):
        device.write(number % 5, bytes([number % 256]) * BLOCK)
    assert [device.read(lba, 1)[0] for lba in range(5)] == [39, 40, 41, 42, 43]


def test_an_event_that_does_not_come_times_out_and_the_device_goes_on(device: Device) -> None:
    with pytest.raises(CommandTimeout):
        device.admin(AdminOpcode.ASYNCHRONOUS_EVENT_REQUEST, timeout=0.05)
    assert device.identify().vid == 0x1B96
    assert len(device.read(0, 1)) == BLOCK


def test_features_and_logs_are_reached_by_commands_of_ones_own(device: Device) -> None:
    threshold = FeatureId.TEMPERATURE_THRESHOLD
    device.admin(AdminOpcode.SET_FEATURES, cdw10=threshold, cdw11=350)
    found = device.admin(AdminOpcode.GET_FEATURES, cdw10=threshold)
    assert found.result == 350
    before = SmartLog(device.log_page(LogPage.SMART, SmartLog.SIZE, nsid=0xFFFF_FFFF))
    device.read(0, 1)
    after = SmartLog(device.log_page(LogPage.SMART, SmartLog.SIZE, nsid=0xFFFF_FFFF))
    assert after.host_read_commands == before.host_read_commands + 1


def test_an_accelerators_buffers_and_its_states(device: Device) -> None:
    (accelerator,) = device.accelerators()
    accelerator.disable()
    with pytest.raises(CommandFailed) as disabled:
        accelerator.write_input(b"abcd")
    assert disabled.value.status == VendorStatus.SUBSYSTEM_DISABLED
    accelerator.enable()
    accelerator.reset()
    assert accelerator.status().status == StatusId.IDLE
    accelerator.write_input(os.urandom(MIB + 5))
    assert accelerator.read_output(5) == bytes(5)
    with pytest.raises(CommandFailed) as missing:
        accelerator.select(9)
    assert missing.value.status == VendorStatus.INVALID_FIRMWARE
    with pytest.raises(CommandFailed) as refused:
        accelerator.send_firmware(b"not a program", 1)
    assert refused.value.status == VendorStatus.FIRMWARE_REFUSED
    with pytest.raises(JobFailed, match="no job"):
        accelerator.wait(timeout=1)
    assert any("firmware 1 was refused" in entry.text for entry in accelerator.log().entries)


def test_a_device_that_is_killed_is_gone_and_leaves_nothing_behind(tmp_path: Path) -> None:
    before = open_descriptors()
    path = tmp_path / "s"
    with device_process(path, *SMALL) as process:
        device = potash.sdk.open(f"vfio-user:{path}")
        process.kill()
        process.wait()
        with pytest.raises(DeviceGone):
            device.read(0, 1)
        with pytest.raises(DeviceGone):
            device.flush()
        device.close()
        with pytest.raises(DeviceNotFound):
            potash.sdk.open(f"vfio-user:{path}")
    assert open_descriptors() == before


def test_blocks_come_back_with_several_commands_in_flight(socket: Path) -> None:
    content = os.urandom(9 * MIB)
    with potash.sdk.open(f"vfio-user:{socket}", queue_depth=16) as device:
        device.write(100, content)
        reads = [
            device.submit(0x02, cdw10=100 + number, data_in_length=BLOCK) for number in range(40)
        ]
        assert b"".join(read.result().data for read in reads) == content[: 40 * BLOCK]
        assert device.read(100, 9 * MIB // BLOCK) == content


def test_a_second_client_waits_for_one_that_is_about_to_leave(socket: Path) -> None:
    with ExitStack() as stack:
        first = stack.enter_context(potash.sdk.open(f"vfio-user:{socket}"))
        first.write(7, b"first".ljust(BLOCK, b"\0"))
        leaving = threading.Timer(0.1, stack.pop_all().close)
        leaving.start()
        with potash.sdk.open(f"vfio-user:{socket}") as second:
            assert second.read(7, 1)[:5] == b"first"
        leaving.join()


def test_a_second_client_learns_soon_that_the_device_is_busy(device: Device, socket: Path) -> None:
    for _ in range(2):
        with pytest.raises(DeviceNotFound, match="is busy with another client") as caught:
            potash.sdk.open(f"vfio-user:{socket}")
        cause = caught.value.__cause__
        assert isinstance(cause, VfioUserError)
        assert cause.errno == errno.ECONNRESET, "the device said so, and was not waited for"
    device.flush()


def test_clients_one_after_the_other_are_never_turned_away(socket: Path) -> None:
    for _ in range(30):
        with potash.sdk.open(f"vfio-user:{socket}") as device:
            device.flush()


def test_an_application_may_have_many_descriptors_of_its_own(socket: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 1200:
        pytest.skip("this process may not have so many descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 1200), hard))
    held = [os.dup(0) for _ in range(1100)]
    try:
        with potash.sdk.open(f"vfio-user:{socket}") as device:
            assert len(device.read(0, 1)) == BLOCK
    finally:
        for fd in held:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
