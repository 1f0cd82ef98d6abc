"""The ioctl transport, against Linux's `nvme_ioctl.h`, with a kernel that is played."""

import ctypes
import errno
import os
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from potash.sdk import (
    CommandFailed,
    CommandTimeout,
    Device,
    DeviceGone,
    DeviceNotFound,
    InvalidRequest,
    PotashError,
)
from potash.sdk import open as open_device
from potash.sdk.ioctl import IoctlTransport, open_ioctl
from potash.sdk.transport import Request

ADMIN64_CMD, IO64_CMD, RESET, ID = 0xC050_4E47, 0xC050_4E48, 0x4E44, 0x4E40
COMMAND = struct.Struct("=BBHIIIQQIIIIIIIIIIQ")
CDWS = (10, 11, 12, 13, 14, 15)

Kernel = Callable[[int, tuple[int, ...]], tuple[int, int]]


@pytest.fixture
def fd() -> Iterator[int]:
    """A descriptor that a transport may close."""
    opened = os.open("/dev/null", os.O_RDWR)
    yield opened
    try:
        os.close(opened)
    except OSError:
        pass


class PlayedKernel:
    """Takes commands as the kernel does: reads or fills the memory at their address."""

    def __init__(self, returned: int = 0, result: int = 0, fill: bytes = b"") -> None:
        self.returned = returned
        self.result = result
        self.fill = fill
        self.calls: list[tuple[int, tuple[int, ...]]] = []
        self.sent: list[bytes] = []

    def __call__(self, fd: int, request: int, argument: bytearray | int) -> int:
        if isinstance(argument, int):
            self.calls.append((request, (argument,)))
            return self.returned
        fields = COMMAND.unpack(argument)
        self.calls.append((request, fields))
        address, length = fields[7], fields[9]
        if length:
            self.sent.append(ctypes.string_at(address, length))
            ctypes.memmove(address, self.fill, len(self.fill))
        struct.pack_into("=Q", argument, 72, self.result)
        return self.returned


def test_a_command_is_laid_out_as_the_kernel_wants_it(fd: int) -> None:
    kernel = PlayedKernel(result=0x1234_0000_5678)
    transport = IoctlTransport(fd, ioctl=kernel)
    completion = transport.submit(Request(True, 0xC1, 3, CDWS, b"abcd"), 1.5).result()
    ((number, fields),) = kernel.calls
    assert number == ADMIN64_CMD
    assert fields[:7] == (0xC1, 0, 0, 3, 0, 0, 0)
    assert fields[8:] == (0, 4, *CDWS, 1500, 0, 0)
    assert kernel.sent == [b"abcd"]
    assert completion == (0x1234_0000_5678, b"")


def test_data_comes_in_through_the_commands_address(fd: int) -> None:
    transport = IoctlTransport(fd, ioctl=PlayedKernel(fill=b"answer!!"))
    assert transport.submit(Request(True, 0x06, data_in_length=8), 1).result().data == b"answer!!"


def test_io_commands_have_an_ioctl_of_their_own_and_may_have_no_data(fd: int) -> None:
    kernel = PlayedKernel()
    IoctlTransport(fd, ioctl=kernel).submit(Request(False, 0x00, 1), 30).result()
    ((number, fields),) = kernel.calls
    assert number == IO64_CMD
    assert (fields[7], fields[9]) == (0, 0)


def test_a_field_that_no_command_has_is_refused(fd: int) -> None:
    device = Device(IoctlTransport(fd, nsid=1, ioctl=PlayedKernel()))
    with pytest.raises(TypeError, match="a command has no 'length'; it has cdw10, .*timeout"):
        device.admin(0x02, length=4)  # type: ignore[call-arg]


def test_a_number_that_no_field_holds_is_refused(fd: int) -> None:
    kernel = PlayedKernel()
    device = Device(IoctlTransport(fd, nsid=1, ioctl=kernel))
    for opcode, nsid, cdw10 in ((0, 1 << 32, 0), (0, 1, -1), (0, 1, 1 << 32), (0x100, 1, 0)):
        with pytest.raises(InvalidRequest, match="out of its range"):
            device.io(opcode, nsid=nsid, cdw10=cdw10)
    assert kernel.calls == []


def test_commands_in_flight_have_a_thread_each(fd: int) -> None:
    both = threading.Barrier(2)

    def kernel(fd: int, request: int, argument: bytearray | int) -> int:
        both.wait(5.0)
        return 0x7C1

    transport = IoctlTransport(fd, queue_depth=2, ioctl=kernel)
    pending = [transport.submit(Request(False, 0x01, 1, CDWS, b"abcd"), 1) for _ in range(2)]
    for command in pending:
        with pytest.raises(CommandFailed):
            command.result()
        assert command.done()
    transport.close()


def test_a_queue_of_one_command_needs_no_thread(fd: int) -> None:
    before = threading.active_count()
    transport = IoctlTransport(fd, ioctl=PlayedKernel(returned=0x7C1))
    pending = transport.submit(Request(False, 0x00, 1), 1)
    assert pending.done() and threading.active_count() == before
    with pytest.raises(CommandFailed):
        pending.result()


def test_reset_has_an_ioctl_of_its_own(fd: int) -> None:
    kernel = PlayedKernel()
    IoctlTransport(fd, ioctl=kernel).reset()
    assert kernel.calls == [(RESET, (0,))]


def test_what_the_kernel_returns_is_a_status(fd: int) -> None:
    kernel = PlayedKernel(returned=0x4000 | 0x7C1)
    with pytest.raises(CommandFailed) as caught:
        IoctlTransport(fd, ioctl=kernel).submit(Request(False, 0x91, 1), 1).result()
    assert (caught.value.status, caught.value.dnr) == (0x7C1, True)


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ENODEV, DeviceGone),
        (errno.ETIMEDOUT, CommandTimeout),
        (errno.EPERM, PotashError),
        (errno.EINVAL, PotashError),
    ],
)
def test_an_error_of_the_kernel_is_one_of_ours(
    fd: int, number: int, kind: type[PotashError]
) -> None:
    def failing(fd: int, request: int, argument: bytearray | int) -> int:
        raise OSError(number, os.strerror(number))

    with pytest.raises(PotashError) as caught:
        IoctlTransport(fd, ioctl=failing).submit(Request(True, 0x06), 1).result()
    assert type(caught.value) is kind


def test_a_closed_transport_says_so_and_may_be_closed_again(fd: int) -> None:
    transport = IoctlTransport(fd, ioctl=PlayedKernel())
    transport.close()
    transport.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
    with pytest.raises(DeviceGone, match="closed"):
        transport.reset()


def test_a_character_device_is_a_controller_or_a_namespace_without_blocks() -> None:
    def controller(fd: int, request: int, argument: bytearray | int) -> int:
        raise OSError(errno.ENOTTY, os.strerror(errno.ENOTTY))

    for kernel, nsid in ((controller, None), (PlayedKernel(returned=2), 2)):
        transport = open_ioctl("/dev/null", ioctl=kernel)
        assert (transport.nsid, transport.block_device) == (nsid, None)
        transport.close()


def test_another_namespace_s_commands_go_through_its_own_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`nvme0n1` is namespace 1; the generic devices beside it are asked which they are."""
    identifiers = {"nvme0n1": 1, "ng0n1": 1, "ng0n2": 7, "ng1n1": 9}
    for name in identifiers:
        (tmp_path / name).touch()
    sent: list[tuple[str, int]] = []

    def kernel(fd: int, request: int, argument: bytearray | int) -> int:
        name = os.path.basename(os.readlink(f"/proc/self/fd/{fd}"))
        if isinstance(argument, int):
            return identifiers[name]
        sent.append((name, COMMAND.unpack(argument)[3]))
        return 0

    monkeypatch.setattr("potash.sdk.ioctl.stat.S_ISCHR", lambda mode: True)
    before = len(os.listdir("/proc/self/fd"))
    transport = open_ioctl(str(tmp_path / "nvme0n1"), ioctl=kernel)
    for nsid in (1, 7, 7, 9):
        transport.submit(Request(False, 0x01, nsid), 1).result()
    transport.submit(Request(True, 0x85, 7), 1).result()
    # No device of this drive is namespace 9, so the kernel says what it makes of it.
    assert sent == [("nvme0n1", 1), ("ng0n2", 7), ("ng0n2", 7), ("nvme0n1", 9), ("nvme0n1", 7)]
    transport.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_path_that_is_no_device_is_refused(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    regular = tmp_path / "nvme0n1"
    regular.write_bytes(b"")
    with pytest.raises(DeviceNotFound, match="is not a device"):
        open_device(str(regular))
    with pytest.raises(DeviceNotFound, match="cannot open .*No such file"):
        open_device(str(tmp_path / "nothing"))
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM])
def test_who_may_not_open_a_device_is_told_to_be_root(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: str, flags: int) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("potash.sdk.ioctl.os.open", refuse)
    with pytest.raises(DeviceNotFound, match="; run this as root$"):
        open_device("/dev/nvme0n1")


def test_a_block_device_is_asked_which_namespace_it_is(
    fd: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("potash.sdk.ioctl.os.open", lambda path, flags: fd)
    monkeypatch.setattr("potash.sdk.ioctl.stat.S_ISCHR", lambda mode: False)
    monkeypatch.setattr("potash.sdk.ioctl.stat.S_ISBLK", lambda mode: True)
    kernel = PlayedKernel(returned=5)
    assert open_ioctl("/dev/nvme0n5", ioctl=kernel).nsid == 5
    assert kernel.calls == [(ID, (0,))]


def test_a_block_device_that_is_not_nvme_is_refused_and_closed(
    fd: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def not_nvme(fd: int, request: int, argument: bytearray | int) -> int:
        raise OSError(errno.ENOTTY, os.strerror(errno.ENOTTY))

    monkeypatch.setattr("potash.sdk.ioctl.os.open", lambda path, flags: fd)
    monkeypatch.setattr("potash.sdk.ioctl.stat.S_ISCHR", lambda mode: False)
    monkeypatch.setattr("potash.sdk.ioctl.stat.S_ISBLK", lambda mode: True)
    with pytest.raises(DeviceNotFound, match="/dev/sda is not an NVMe device"):
        open_ioctl("/dev/sda", ioctl=not_nvme)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
