"""Two hosts, one after the other: the second reads all that a device gives, and nothing of the
first."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import suppress

import pytest

import potash.sdk
from csd_spec.status import StatusId
from nvme_spec.commands import FirmwareImageDownload, GetLogPage, Identify
from nvme_spec.opcodes import AdminOpcode, IoOpcode
from potash.sdk import CommandFailed, Device, PotashError
from potash.sdk.commands import encoded
from potash.vm.drive import device_process
from support.bpf_assembler import assemble
from support.bpf_elf import Name, Part, elf, text

PATTERN = b"of-a-former-host"
BUFFER = 1 << 20
PAGE = 4096

FILL = f"""
prog:
    r6 = r1
    r7 = r2
    r8 = {BUFFER // 8}
    r0 = *(u64 *)(r6 + 0)
fill:
    *(u64 *)(r7 + 0) = r0
    r7 += 8
    r8 += -1
    if r8 != 0 goto fill
    r2 = r6
    r1 = 0
    r3 = 16
    call 5
    r0 = *(u64 *)(r6 + 8)
    exit
"""
"""Fills the output with the input's first bytes and logs the first 16; returns the next 8."""

DUMP = f"""
prog:
    r6 = *(u64 *)(r1 + 0)
    r6 += r1
    r8 = {BUFFER // 8}
copy:
    r0 = *(u64 *)(r6 + 0)
    *(u64 *)(r2 + 0) = r0
    r6 += 8
    r2 += 8
    r8 += -1
    if r8 != 0 goto copy
    r0 = 0
    exit
"""
"""Fills the output with its memory, from as many bytes behind the input's beginning as that
says."""


def program(code: str, remark: bytes = b"") -> bytes:
    parts = [text(assemble(code)), Part(".comment", remark, flags=0, alignment=1)]
    return elf(parts, [Name("prog")])


@pytest.fixture(scope="module")
def socket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    path = tmp_path_factory.mktemp("device") / "s"
    with device_process(path, "--size", "16M", "--accelerator", "1M:1M"):
        yield f"vfio-user:{path}"


def fill(device: Device) -> None:
    """Put the pattern wherever a host can put anything that is not the drive's own content."""
    accelerator = device.accelerators()[0]
    accelerator.enable()
    for firmware in range(16):
        accelerator.send_firmware(program(FILL, PATTERN * 256), firmware)
    accelerator.write_input(PATTERN * (BUFFER // 16))
    accelerator.start(firmware_id=3)
    assert accelerator.wait(timeout=20).status == StatusId.DONE
    assert accelerator.read_output(16) == PATTERN[:8] * 2
    assert PATTERN in accelerator.log().encode()
    accelerator.log(retain=True)
    accelerator.status(retain=True)
    # LBA Range Type, with the pattern as the range's unique identifier.
    ranges = (b"\2\1" + bytes(30) + PATTERN).ljust(PAGE, b"\0")
    with suppress(CommandFailed):
        device.admin(AdminOpcode.SET_FEATURES, nsid=1, cdw10=3, data_out=ranges)
    piece = encoded(FirmwareImageDownload(PAGE // 4 - 1, 0))
    device.admin(AdminOpcode.FIRMWARE_IMAGE_DOWNLOAD, data_out=PATTERN * (PAGE // 16), **piece)
    first, second = struct.unpack("<II", PATTERN[:8])
    with pytest.raises(CommandFailed):  # the error log names its block
        device.io(IoOpcode.READ, cdw10=first, cdw11=second, data_in_length=PAGE)
    capture = encoded(GetLogPage(7, PAGE // 4 - 1, lsp=1))
    device.admin(AdminOpcode.GET_LOG_PAGE, data_in_length=PAGE, **capture)


def answers(device: Device) -> Iterator[tuple[object, bytes]]:
    """All that the device gives to a host: what was asked, and the answer."""
    for cns in range(256):
        for nsid in (0, 1):
            asked = encoded(Identify(cns))
            with suppress(CommandFailed):
                answer = device.admin(AdminOpcode.IDENTIFY, nsid=nsid, data_in_length=PAGE, **asked)
                yield f"identify {cns:#x}", answer.data
    for lid in range(256):
        with suppress(CommandFailed):
            yield f"log page {lid:#x}", device.log_page(lid, 64 * 1024, rae=True)
    for fid in range(256):
        for select in (0, 1, 2):
            with suppress(CommandFailed):
                found = device.admin(
                    AdminOpcode.GET_FEATURES, nsid=1, cdw10=fid | select << 8, data_in_length=PAGE
                )
                yield f"feature {fid:#x}", found.data + struct.pack("<I", found.result)
    accelerator = device.accelerators()[0]
    yield "status", accelerator.status().encode()
    accelerator.enable()
    yield "output", accelerator.read_output(BUFFER)
    for firmware in range(16):
        with suppress(PotashError):
            yield f"firmware {firmware}", accelerator.read_firmware(PAGE, firmware)
    dump = program(DUMP)
    accelerator.send_firmware(dump)
    for at in (-PAGE, 0, BUFFER + PAGE):  # stack, input, output, data
        accelerator.write_input(struct.pack("<q", at))
        accelerator.start(firmware_id=0)
        assert accelerator.wait(timeout=20).status == StatusId.DONE, accelerator.log()
        yield f"a program's memory from {at}", accelerator.read_output(BUFFER)


def found(device: Device) -> list[object]:
    """Where the pattern is: its bytes, or half of it, as they are or as hexadecimal digits."""
    forms = [
        form
        for half in (PATTERN[:8], PATTERN[8:])
        for form in (half, half.hex().encode(), str(int.from_bytes(half, "little")).encode())
    ]
    return [asked for asked, data in answers(device) if any(form in data for form in forms)]


def test_the_next_host_finds_nothing_of_the_last_one(socket: str) -> None:
    with potash.sdk.open(socket, timeout=20.0) as first:
        fill(first)
        assert {"output", "log page 0x1", "log page 0xc0", "firmware 5"} <= set(found(first))
    with potash.sdk.open(socket, timeout=20.0) as second:
        assert found(second) == []


def test_a_controller_reset_leaves_the_same_host_what_it_logged(socket: str) -> None:
    with potash.sdk.open(socket, timeout=20.0) as device:
        fill(device)
        device.reset()
        # Where the device answers with no data the driver's own buffer is as it was.
        left = [one for one in found(device) if not str(one).startswith("feature")]
        assert left == ["log page 0xc0"]


def test_a_secure_erase_leaves_nothing_of_the_blocks_that_jobs_have_read(socket: str) -> None:
    with potash.sdk.open(socket, timeout=20.0) as device:
        device.write(0, PATTERN * (BUFFER // 16))
        accelerator = device.accelerators()[0]
        accelerator.enable()
        accelerator.send_firmware(program(FILL))
        accelerator.use_local_input(0, BUFFER // PAGE)
        accelerator.start(firmware_id=0)
        assert accelerator.wait(timeout=20).status == StatusId.DONE
        device.admin(AdminOpcode.FORMAT_NVM, nsid=1, cdw10=1 | 1 << 9, timeout=20)
        assert found(device) == []
        assert not any(device.read(0, 16))
